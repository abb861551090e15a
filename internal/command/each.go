package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
)

// addressesOf are what --address says: one, or several with commas between. One that is empty would
// be this machine's.
func addressesOf(flags caddycmd.Flags) ([]string, error) {
	all := strings.Split(flags.String("address"), ",")
	for i := range all {
		if all[i] = strings.TrimSpace(all[i]); all[i] == "" && len(all) > 1 {
			return nil, fmt.Errorf("--address: %q has an empty address between its commas", flags.String("address"))
		}
	}
	return all, nil
}

// askEach asks one node after the other, each of which answers for itself: below its address, or
// with --json as a value of an object. A node that fails keeps no other one from being asked.
func askEach(flags caddycmd.Flags, addresses []string, p printer, ask func(client, printer) error) error {
	p.several = true
	var failed, inPart int
	answers := map[string]json.RawMessage{}
	for i, address := range addresses {
		var b bytes.Buffer
		one := p
		one.out = &b
		err := ask(clientAt(flags, address), one)
		switch {
		case errors.Is(err, errInPart), errors.Is(err, errTooMany):
			inPart++
		case err != nil:
			failed++
		}
		if p.json {
			if err != nil && b.Len() == 0 {
				b.WriteString(errorText(err))
			}
			answers[address] = b.Bytes()
			continue
		}
		var heading page
		if i > 0 {
			heading.line("")
		}
		heading.line("Node %s:", address)
		heading.Write(b.Bytes())
		if err != nil {
			heading.line("It failed: %v", err)
		}
		if _, err := p.out.Write(heading.Bytes()); err != nil {
			return err
		}
	}
	if p.json {
		if err := p.value(answers); err != nil {
			return err
		}
	}
	switch {
	case failed > 0:
		return fmt.Errorf("%d of %d nodes failed", failed, len(addresses))
	case inPart > 0:
		return errInPart
	}
	return nil
}

// errorText is an error as the endpoint has them.
func errorText(err error) string {
	text, _ := json.Marshal(map[string]string{"error": err.Error()}) // strings can be written
	return string(text)
}
