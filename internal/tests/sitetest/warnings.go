package sitetest

import (
	"slices"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// Watched are the warnings that a site logs from now on.
func (s *Site) Watched() *observer.ObservedLogs {
	core, logs := observer.New(zap.WarnLevel)
	s.lines.Store(&core)
	return logs
}

// Coded is how many lines have a code.
func Coded(logs *observer.ObservedLogs, code string) int {
	return logs.FilterField(zap.String("code", code)).Len()
}

// A lineCore is what a site's log goes to beside stderr: the core in to, if there is one.
type lineCore struct {
	to     *atomic.Pointer[zapcore.Core]
	fields []zapcore.Field
}

// newLines is where the log of the site goes that is being made.
var newLines *atomic.Pointer[zapcore.Core]

func init() { caddy.RegisterModule(new(lineCore)) }

// CaddyModule returns the Caddy module information.
func (*lineCore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.logging.cores.sitetest", New: func() caddy.Module { return &lineCore{to: newLines} }}
}

// logging is that of a new site.
func (s *Site) logging() *caddy.Logging {
	newLines = &s.lines
	return &caddy.Logging{Logs: map[string]*caddy.CustomLog{"default": {BaseLog: caddy.BaseLog{CoreRaw: []byte(`{"module": "sitetest"}`)}}}}
}

func (c *lineCore) Enabled(zapcore.Level) bool { return c.to.Load() != nil }

func (c *lineCore) With(fields []zapcore.Field) zapcore.Core {
	return &lineCore{c.to, append(slices.Clip(c.fields), fields...)}
}

func (c *lineCore) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) && e.Level >= zap.WarnLevel {
		return checked.AddCore(e, c)
	}
	return checked
}

func (c *lineCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	if to := c.to.Load(); to != nil {
		return (*to).Write(e, append(slices.Clip(c.fields), fields...))
	}
	return nil
}

func (c *lineCore) Sync() error { return nil }
