// no clock: configurations are only read here.

package recipes_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// besides are the lines that an option's example needs beside it, other than a limit.
var besides = map[string]string{
	"limit_default": "limit {plan}/1m", "burst": "limit 100/1m \n algorithm token_bucket", "queue": "limit 100/1m \n algorithm leaky_bucket",
	"cost_default": "limit 100/1m \n cost {units}", "response_cost_default": "limit 100/1m \n cost 500 \n count_responses 2xx \n response_cost json usage.total_tokens", "limit": " ",
	"forgive_responses": "limit 100/1m \n count_responses 401",
	"tls_client_cert":   "tls_client_key /etc/caddy/node.key", "tls_client_key": "tls_client_cert /etc/caddy/node.pem",
	"sentinel_username": "master_name mymaster \n sentinel_password secret", "sentinel_password": "master_name mymaster", "master_name": " ",
	"tls_enabled": " ", "tls_insecure": "tls_enabled", "tls_server_certs_path": "tls_enabled", "tls_server_name": "tls_enabled",
	"username": "password secret", "calendar": "limit 5/month",
}

// Each example of the page of options loads in the block that the page has it in, with no more than
// what the option needs beside it.
func TestExamplesOfTheOptionsLoad(t *testing.T) {
	examples := map[string]int{}
	for part := range strings.SplitSeq(sitetest.ReadPage(t, "docs/options.md"), "\n## ") {
		section, _, _ := strings.Cut(part, "\n")
		for _, m := range regexp.MustCompile("### ([a-z0-9_]+)[a-z ]*\n\n(?:(?:`[^`]+`,\\s)+as\\s)?`([^`]+)`").FindAllStringSubmatch(part, -1) {
			option, line := m[1], m[2]
			examples[section]++
			block := "{ \n limit 100/1m \n }"
			if option == "distributed" {
				block = "{ \n read_interval 5s \n }"
			}
			regions := "here eu \n region eu redis://eu.example.com \n region us redis://us.example.com"
			if section == "Global options" && option == "regions" {
				block = "{ \n " + regions + " \n }"
			}
			line = strings.Replace(line, "{ … }", block, 1)
			beside, ok := besides[option]
			global, handler := "redis redis://localhost:6379", "zone z { \n limit 100/1m \n }"
			switch section {
			case "Options of a limit":
				if !ok {
					beside = "limit 100/1m"
				}
				handler = "zone z { \n " + line + " \n " + beside + " \n }"
			case "Options of the handler":
				handler += "\n" + line
			case "Global options":
				if option != "redis" && option != "regions" {
					line = global + " \n " + line
				}
				global = line
			case "Redis options":
				global = "redis { \n " + line + " \n " + beside + " \n }"
			case "Options of regions":
				if line = strings.ReplaceAll(line, "{env.TIDE_REGION}", "eu"); option == "here" {
					regions = strings.Replace(regions, "here eu \n", "", 1)
				} else if option == "region" {
					regions = strings.Replace(regions, "\n region eu redis://eu.example.com", "", 1)
				}
				global = "regions { \n " + line + " \n " + regions + " \n }"
			default:
				t.Fatalf("the section %q has an example", section)
			}
			text := "{ \n rate_limit { \n " + global + " \n } \n } \n example.com { \n @paying header X-Plan paid \n rate_limit { \n " + handler + " \n } \n respond ok \n }"
			if _, err := sitetest.Adapt(text); err != nil {
				t.Errorf("the example of %s, `%s`: %v", option, m[2], err)
			}
		}
	}
	if examples["Options of a limit"] < 25 || examples["Options of the handler"] < 8 || examples["Global options"] < 6 || examples["Redis options"] < 15 {
		t.Errorf("found examples %v, want more", examples)
	}
}
