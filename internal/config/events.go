package config

import (
	"encoding/json"
	"fmt"
)

// Events are a number of requests as JSON has it: 100, or a placeholder that the number comes from
// with each request, as in "{plan}".
type Events struct {
	// Number is the number, 0 where it comes from a placeholder.
	Number int64
	// From is the placeholder in its braces, "" for none.
	From string
}

// UnmarshalJSON reads a number, or a placeholder in quotes.
func (e *Events) UnmarshalJSON(text []byte) error {
	*e = Events{}
	return readNumberOrPlaceholder("max_events", text, &e.Number, &e.From)
}

func readNumberOrPlaceholder(field string, text []byte, number any, from *string) error {
	if len(text) == 0 || text[0] != '"' {
		return json.Unmarshal(text, number)
	}
	if err := json.Unmarshal(text, from); err != nil {
		return err
	}
	if err := CheckPlaceholder(*from); err != nil {
		return fmt.Errorf("parsing %s: %w", field, err)
	}
	return nil
}

// MarshalJSON writes what UnmarshalJSON reads.
func (e Events) MarshalJSON() ([]byte, error) { return numberOrPlaceholder(e.Number, e.From) }

func numberOrPlaceholder(number any, from string) ([]byte, error) {
	if from != "" {
		return json.Marshal(from)
	}
	return json.Marshal(number)
}
