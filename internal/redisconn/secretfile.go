package redisconn

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/caddyserver/caddy/v2"
)

// secretMost is how much Caddy reads of a file.
const secretMost = 1 << 20

// secretFiles reads what {file.*} stands for as Caddy does, but keeps the first error where Caddy
// logs each: a Redis that is away is tried ten times a second.
type secretFiles struct{ err error }

func (s *secretFiles) replace(key string) (any, bool) {
	name, ok := strings.CutPrefix(key, "file.")
	if !ok {
		return nil, false
	}
	text, err := readSecret(name)
	if err == nil {
		return text, true
	}
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		if absolute, err := filepath.Abs(name); err == nil {
			at.Path = absolute // the log has no working directory
		}
	}
	if s.err == nil {
		s.err = &FileError{err}
	}
	return "", true
}

func readSecret(name string) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, secretMost))
	return strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r"), err
}

// credentials returns the user and the password as the files that they stand in have them now: a
// secret that is rotated needs no reload.
func (o *Options) credentials(context.Context) (username, password string, err error) {
	var files secretFiles
	repl := caddy.NewReplacer().WithoutFile()
	repl.Map(files.replace)
	known := (&Options{URL: o.URL, Username: o.Username, Password: o.Password}).replaced(repl)
	if files.err != nil {
		return "", "", files.err
	}
	if known.URL == "" {
		return known.Username, known.Password, nil
	}
	s, err := ParseURL(known.URL)
	if err != nil {
		return "", "", nil // Redis rejects these, and so it is tried again
	}
	return s.Username, s.Password, nil
}
