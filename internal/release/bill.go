package main

import (
	"runtime/debug"
	"strings"
)

// A bill says what a program is made of, in the JSON of CycloneDX 1.6. It has no date and no serial
// number, so that it is the same for the same program.
// See https://cyclonedx.org/docs/1.6/json/.
type bill struct {
	Format       string       `json:"bomFormat"`
	SpecVersion  string       `json:"specVersion"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PURL       string     `json:"purl"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn,omitempty"`
}

// billOf goes by what the compiler wrote into a program: the modules that it is linked from.
func billOf(info *debug.BuildInfo, sum string) bill {
	program := module("application", info.Main)
	program.Name = info.Path
	program.Hashes = []hash{{"SHA-256", sum}}
	for _, s := range info.Settings {
		program.Properties = append(program.Properties, property{"go:build:" + s.Key, s.Value})
	}
	b := bill{Format: "CycloneDX", SpecVersion: "1.6", Version: 1, Metadata: metadata{program}}
	modules := []debug.Module{{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}}
	for _, m := range info.Deps {
		modules = append(modules, *m)
	}
	on := dependency{Ref: program.Ref}
	for _, m := range modules {
		c := module("library", m)
		b.Components = append(b.Components, c)
		on.DependsOn = append(on.DependsOn, c.Ref)
	}
	b.Dependencies = []dependency{on}
	return b
}

// module is a module of Go. The checksum of go.sum is one of a list of files and no hash of a
// file, so it is a property.
func module(kind string, m debug.Module) component {
	if m.Replace != nil {
		m = *m.Replace
	}
	url := "pkg:golang/" + strings.ToLower(m.Path)
	if m.Version != "(devel)" {
		url += "@" + strings.ReplaceAll(m.Version, "+", "%2B")
	}
	c := component{Type: kind, Ref: url, Name: m.Path, Version: m.Version, PURL: url}
	if m.Sum != "" {
		c.Properties = []property{{"go:sum", m.Sum}}
	}
	return c
}
