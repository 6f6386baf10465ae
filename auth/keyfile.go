package auth

import (
	"fmt"
	"io/fs"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ReadKeyFile reads the members' keys: one, or a YAML list of them. Only the file's owner may have access to it.
func ReadKeyFile(path string) (*Key, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("error opening file: %s: %w", path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("error opening file: %s: not a regular file", path)
	}
	if info.Mode()&fs.ModePerm&0o077 != 0 {
		return nil, fmt.Errorf("permissions on %s are too open", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("error opening file: %s: %w", path, err)
	}
	keys, err := ParseKeys(text)
	if err != nil {
		return nil, fmt.Errorf("security key in %s %w", path, err)
	}
	return NewKey(keys)
}

// ParseKeys reads the text of a key file. White space within a key is ignored.
func ParseKeys(text []byte) ([]string, error) {
	var list []string
	if err := yaml.Unmarshal(text, &list); err != nil {
		list = []string{string(text)}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("has length 0, must be between 6 and 1024 chars")
	}
	for i, key := range list {
		key = strings.Join(strings.Fields(key), "")
		if len(key) < 6 || len(key) > 1024 {
			return nil, fmt.Errorf("has length %d, must be between 6 and 1024 chars", len(key))
		}
		for _, c := range key {
			if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '+' || c == '/' || c == '=') {
				return nil, fmt.Errorf("has a character that is none of base64: %q", c)
			}
		}
		list[i] = key
	}
	return list, nil
}
