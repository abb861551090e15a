package sitetest

import (
	"encoding/json"
	"net/http"
	"testing"
)

// AnswerOf asks the admin endpoint, which must answer.
func AnswerOf[T any](t *testing.T, method, path, body string) (answer T) {
	t.Helper()
	status, text := Ask(method, path, body)
	if err := json.Unmarshal([]byte(text), &answer); status != http.StatusOK || err != nil {
		t.Fatalf("%s %s %s = %d %s", method, path, body, status, text)
	}
	return answer
}
