// no clock: the example is one of a page.

package ratelimit_test

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-tide/ratelimit"
)

// A Caddyfile becomes the JSON that the module's fields document.
func Example() {
	adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(`
example.com {
	rate_limit {
		zone login {
			match {
				path /login
			}
			limit 5/1m
			algorithm sliding_log
		}
	}
	respond ok
}`), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	var config struct {
		Apps struct {
			HTTP struct {
				Servers map[string]struct{ Routes []route }
			}
		}
	}
	if err := json.Unmarshal(adapted, &config); err != nil {
		fmt.Println(err)
		return
	}
	limits := config.Apps.HTTP.Servers["srv0"].Routes[0].Handle[0].Routes[0].Handle[0].RateLimits
	var text bytes.Buffer
	_ = json.Indent(&text, limits, "", " ")
	fmt.Println(text.String())
	// Output:
	// {
	//  "login": {
	//   "algorithm": "sliding_log",
	//   "limits": [
	//    {
	//     "max_events": 5,
	//     "window": 60000000000
	//    }
	//   ],
	//   "match": [
	//    {
	//     "path": [
	//      "/login"
	//     ]
	//    }
	//   ],
	//   "source": "Caddyfile:4"
	//  }
	// }
}

type route struct {
	Handle []struct {
		Routes     []route
		RateLimits json.RawMessage `json:"rate_limits"`
	}
}
