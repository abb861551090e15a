package main

import (
	"bytes"
	"os"
	"testing"
)

// The picture in the pages is the one that this code draws.
func TestPictureIsOfThisCode(t *testing.T) {
	drawn, err := os.ReadFile("../../../../" + file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(drawn, picture().SVG()) {
		t.Errorf("%s is not what this code draws; go run ./internal/plot/cmd/architecture brings it up to date", file)
	}
}
