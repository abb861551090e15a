package ratelimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/spelling"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("rate_limit", parseGlobalOption)
}

// parseGlobalOption reads the global option:
//
//	rate_limit {
//		redis          <url>...
//		redis          storage|off
//		redis [simple|failover|cluster] {
//			address               <host:port>...
//			username              <name>
//			password              <secret>
//			db                    <number>
//			timeout               <duration>
//			key_prefix            <namespace>
//			master_name           <name>
//			sentinel_username     <name>
//			sentinel_password     <secret>
//			tls_enabled           [on|off]
//			tls_insecure          [on|off]
//			tls_server_certs_pem  <pem>
//			tls_server_certs_path <directory>
//			tls_client_cert       <file>
//			tls_client_key        <file>
//			tls_server_name       <name>
//			pool_size             <number>
//		}
//		sync_rate      local|strict|<seconds>|<duration>
//		namespace      <name>
//		strict_timeout <duration>
//		persist        [on|off|storage|<file>]
//		quiet          <code>...
//		regions {
//			here      <name>
//			region    <name> <url>...|{ … }
//			sync_rate <duration>
//			on_loss   local|divide
//		}
//	}
//
// redis stands once, in one of its forms. off is no Redis, and so is no value: that is an
// environment variable that is not set, and logged as a warning. persist without a value is
// storage, and with an empty one off, for the same reason. regions stand in the place of redis: the
// block of a region is that of redis.
func parseGlobalOption(d *caddyfile.Dispenser, existing any) (any, error) {
	p := parser{d}
	if !p.Next() {
		return nil, p.ArgErr()
	}
	start := p.Token()
	if existing != nil {
		return nil, placeAt(start, errors.New("the global option rate_limit is given twice; put all options into one of them"))
	}
	if p.NextArg() {
		return nil, placeAt(start, errors.New("the global option rate_limit takes a block; a rate belongs into a site, and Redis into the block: `redis redis://localhost:6379`"))
	}
	app, options := new(App), optionTokens{}
	if err := p.options(options, func(option string) error { return p.appOption(app, option) }); err != nil {
		return nil, err
	}
	if err := app.check(app.globalsAsWritten()); err != nil {
		return nil, p.place(err, options, start)
	}
	if err := app.Regions.check(app.Redis, nil); err != nil {
		return nil, p.place(wrong("regions", err), options, start)
	}
	if err := app.checkNamespace(); err != nil {
		return nil, p.place(wrong("namespace", err), options, options["redis"])
	}
	text, err := json.Marshal(app)
	if err != nil {
		return nil, placeAt(start, err)
	}
	return httpcaddyfile.App{Name: "rate_limit", Value: text}, nil
}

// checkNamespace checks it and its other name, unless they hold placeholders.
func (a *App) checkNamespace() error {
	var prefix string
	if a.Redis != nil {
		prefix = a.Redis.KeyPrefix
	}
	if strings.Contains(a.Namespace+prefix, "{") {
		return nil
	}
	_, err := redisconn.Namespace(a.Namespace, prefix)
	return err
}

// appOption reads one of the global options.
func (p parser) appOption(app *App, option string) (err error) {
	switch option {
	case "redis":
		app.Redis, err = p.redis()
	case "regions":
		app.Regions, err = p.regions()
	case "sync_rate":
		app.SyncRate, err = p.syncRate()
	case "namespace":
		app.Namespace, err = p.word()
	case "strict_timeout":
		app.StrictTimeout, err = p.duration()
	case "persist":
		if app.Persist, err = p.wordOr(lifecycle.InStorage); err == nil {
			err = lifecycle.CheckPersist(app.Persist)
		}
	case "quiet":
		app.Quiet, err = p.words()
	default:
		return config.UnknownOption(option, config.Global)
	}
	return wrong(option, err)
}

// regions reads the block of that name.
func (p parser) regions() (*Regions, error) {
	r := &Regions{Redis: map[string]*redisconn.Options{}}
	err := p.options(optionTokens{}, func(option string) (err error) {
		switch option {
		case "here":
			r.Here, err = p.word()
		case "region":
			return p.region(r)
		case "sync_rate":
			r.SyncRate, err = p.duration()
		case "on_loss":
			r.OnLoss, err = p.word()
		default:
			return config.UnknownOption(option, config.Regions)
		}
		return wrong(option, err)
	}, "region")
	return r, err
}

// region reads one of the regions.
func (p parser) region(r *Regions) (err error) {
	if !p.NextArg() {
		return wrong("region", p.count("region"))
	}
	name := p.Val()
	if r.Redis[name] != nil {
		return wrongf("region", "%s is given twice; keep one of them", spelling.Clip(name))
	}
	r.Redis[name], err = p.redis()
	return wrong("region "+spelling.Clip(name), err)
}

// redis reads the option in all its forms.
func (p parser) redis() (*redisconn.Options, error) {
	r, values := new(redisconn.Options), p.RemainingArgs()
	switch {
	case len(values) == 0, len(values) == 1 && slices.Contains(redisModes, values[0]):
		r.Mode = strings.Join(values, "")
		if err := p.options(optionTokens{}, func(option string) error { return p.redisOption(r, option) }); err != nil {
			return nil, err
		}
	case len(values) == 1 && values[0] == "storage":
		r.Storage = true
	case len(values) == 1 && values[0] == redisconn.Off:
		r.URL = redisconn.Off
	case len(values) > 1 && slices.Contains(values, redisconn.Off):
		return nil, errors.New("off stands alone; remove it, or the other values")
	default:
		r.URL = strings.Join(values, ",")
		if strings.Trim(r.URL, ", ") == "" {
			r.URL = ""
		} else if near := spelling.Nearest(values[0], append(redisModes, "storage", redisconn.Off)); near != "" {
			return nil, fmt.Errorf("there is no %q; did you mean %s?", spelling.Clip(values[0]), near)
		}
	}
	_, _, err := r.ResolveAsWritten()
	return r, err
}

var redisModes = []string{string(redisconn.Simple), string(redisconn.Failover), string(redisconn.Cluster)}

// redisOption reads one option of the redis block. Where a value may come from an environment
// variable, none is an empty one.
func (p parser) redisOption(r *redisconn.Options, option string) (err error) {
	texts := map[string]*string{
		"username": &r.Username, "password": &r.Password, "key_prefix": &r.KeyPrefix, "master_name": &r.MasterName,
		"sentinel_username": &r.SentinelUsername, "sentinel_password": &r.SentinelPassword,
		"tls_server_certs_pem": &r.TLSServerCertsPEM, "tls_server_certs_path": &r.TLSServerCertsPath,
		"tls_client_cert": &r.TLSClientCert, "tls_client_key": &r.TLSClientKey, "tls_server_name": &r.TLSServerName,
	}
	if text, ok := texts[option]; ok {
		*text, err = p.wordOr("")
		return wrong(option, err)
	}
	switch option {
	case "address":
		if r.Address = p.RemainingArgs(); len(r.Address) == 0 {
			r.Address = []string{""}
		}
	case "db":
		r.DB, err = whole[int](p)
	case "timeout":
		r.Timeout, err = p.duration()
	case "tls_enabled":
		r.TLSEnabled, err = p.flag()
	case "tls_insecure":
		r.TLSInsecure, err = p.flag()
	case "pool_size":
		r.PoolSize, err = whole[int](p)
	default:
		return config.UnknownOption(option, config.Redis)
	}
	return wrong(option, err)
}
