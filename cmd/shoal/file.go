package main

import (
	"os"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/shoaldb/shoal/query/value"
)

// readFile reads a configuration file: YAML, or the older key=value lines.
func (t *table) readFile(name string) ([]setting, error) {
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil, usagef("Error opening config file '%s': %v", name, unwrapPath(err))
	}
	return t.readConfig(raw)
}

// readConfig parses the content of a configuration file.
func (t *table) readConfig(raw []byte) ([]setting, error) {
	var root yaml.Node
	if err := yaml.Unmarshal(raw, &root); err == nil {
		if root.Kind == 0 {
			return nil, nil // an empty file
		}
		if len(root.Content) == 1 && root.Content[0].Kind == yaml.MappingNode {
			return t.readYAML(root.Content[0], "")
		}
	}
	return t.readINI(string(raw))
}

// unwrapPath removes the file's name from an error, since the message has it already.
func unwrapPath(err error) error {
	if pe, ok := err.(*os.PathError); ok {
		return pe.Err
	}
	return err
}

// readYAML walks a mapping; prefix is the path so far, with a dot at its end.
func (t *table) readYAML(m *yaml.Node, prefix string) ([]setting, error) {
	var out []setting
	for i := 0; i+1 < len(m.Content); i += 2 {
		path, v := prefix+m.Content[i].Value, m.Content[i+1]
		var some []setting
		var err error
		switch {
		case path == "setParameter" && v.Kind == yaml.MappingNode:
			some, err = t.yamlParameters(v)
		case t.byPath[path] == nil && v.Kind == yaml.MappingNode:
			some, err = t.readYAML(v, path+".")
		default:
			some, err = t.yamlSetting(path, v)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, some...)
	}
	return out, nil
}

func (t *table) yamlSetting(path string, v *yaml.Node) ([]setting, error) {
	o := t.byPath[path]
	if o == nil {
		return nil, usagef("Unrecognized option: %s", path)
	}
	switch v.Kind {
	case yaml.ScalarNode:
		return []setting{{o, v.Value}}, nil
	case yaml.SequenceNode:
		var list []string
		for _, e := range v.Content {
			list = append(list, e.Value)
		}
		return []setting{{o, strings.Join(list, ",")}}, nil
	}
	return nil, usagef("Error parsing YAML config file: %s takes a single value", path)
}

func (t *table) yamlParameters(m *yaml.Node) ([]setting, error) {
	var out []setting
	for i := 0; i+1 < len(m.Content); i += 2 {
		name, v := m.Content[i].Value, m.Content[i+1]
		text := v.Value
		if v.Kind == yaml.MappingNode && name == memberOverride { // the manual also shows it as a mapping
			attributes, extension, err := overrideOf(v)
			if err != nil {
				return nil, usagef("Error parsing YAML config file: setParameter.%s: %v", name, err)
			}
			text = overrideJSON(attributes, extension)
		} else if v.Kind != yaml.ScalarNode {
			return nil, usagef("Error parsing YAML config file: setParameter.%s takes a single value", name)
		}
		out = append(out, setting{t.byPath["setParameter"], name + "=" + text})
	}
	return out, nil
}

// readINI reads lines of name=value with the names of the command line.
func (t *table) readINI(raw string) ([]setting, error) {
	var out []setting
	for _, line := range strings.Split(raw, "\n") {
		if at := strings.IndexByte(line, '#'); at >= 0 {
			line = line[:at]
		}
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		name, val, ok := strings.Cut(line, "=")
		name, val = strings.TrimSpace(name), strings.TrimSpace(val)
		o := t.byName["--"+name]
		if o == nil {
			return nil, usagef("Error parsing INI config file: unrecognised option '%s'", name)
		}
		if !ok {
			val = "true"
		}
		if o.kind == flagKind {
			if val == "false" || val == "0" {
				continue
			}
			if val != "true" && val != "1" {
				return nil, usagef("Error parsing INI config file: expected true or false for '%s', found '%s'", name, val)
			}
			if val = o.yes; val == "" {
				val = "true"
			}
		}
		out = append(out, setting{o, val})
	}
	return out, nil
}

// parsedOptions returns getCmdLineOpts.parsed: the settings at their paths, nested.
func parsedOptions(settings []setting) []byte {
	root := &branch{}
	lists := map[string][]value.Value{}
	for _, s := range settings {
		if s.opt.path == "" {
			continue
		}
		switch {
		case s.opt.path == "setParameter":
			name, val, _ := strings.Cut(s.value, "=")
			root.put([]string{"setParameter", strings.TrimSpace(name)}, value.NewString(strings.TrimSpace(val)))
		case s.opt.kind == listKind:
			list := append(lists[s.opt.path], value.NewString(s.value))
			lists[s.opt.path] = list
			root.put(strings.Split(s.opt.path, "."), value.NewArray(value.ArrayOf(list...)))
		case s.opt.path == "systemLog.path":
			root.put([]string{"systemLog", "destination"}, value.NewString("file"))
			root.put([]string{"systemLog", "path"}, value.NewString(s.value))
		default:
			root.put(strings.Split(s.opt.path, "."), s.parsed())
		}
	}
	return root.append(nil)
}

// parsed returns the setting's value with its type.
func (s setting) parsed() value.Value {
	if s.opt.secret {
		return value.NewString(hiddenValue)
	}
	switch s.opt.kind {
	case numberKind:
		c := &config{}
		var n int64
		if number("", -1<<62, 1<<62, func(_ *config, v int64) { n = v })(c, s.value) == nil {
			if n == int64(int32(n)) {
				return value.NewInt32(int32(n))
			}
			return value.NewInt64(n)
		}
	case countKind:
		return value.NewInt32(int32(len(s.value)))
	case flagKind:
		switch s.value {
		case "true":
			return value.NewBool(true)
		case "false":
			return value.NewBool(false)
		}
	}
	return value.NewString(s.value)
}

// branch is a document under construction whose fields come in any order.
type branch struct {
	keys []string
	kids map[string]*branch
	leaf value.Value
}

func (b *branch) put(path []string, v value.Value) {
	if len(path) == 0 {
		b.leaf = v
		return
	}
	if b.kids == nil {
		b.kids = map[string]*branch{}
	}
	kid := b.kids[path[0]]
	if kid == nil {
		kid = &branch{}
		b.kids[path[0]] = kid
		b.keys = append(b.keys, path[0])
	}
	kid.put(path[1:], v)
}

func (b *branch) append(dst []byte) []byte {
	dst, mark := value.Begin(dst)
	for _, k := range b.keys {
		kid := b.kids[k]
		if kid.kids == nil {
			dst = value.Append(dst, k, kid.leaf)
			continue
		}
		dst = append(append(append(dst, byte(value.Document)), k...), 0)
		dst = kid.append(dst)
	}
	return value.End(dst, mark)
}
