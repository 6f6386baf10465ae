package ddl

import (
	"strings"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// checkStorageEngine checks a storageEngine option. Clients set it for the real server's engine, so the names of its
// options are known; they are stored and shown, but have no effect.
func checkStorageEngine(doc []byte) error {
	for engine, v := range value.Elements(doc) {
		if v.T != value.Document {
			return mongoerr.Newf(mongoerr.BadValue, "'storageEngine.%s' has to be an embedded document.", engine)
		}
		if engine != "wiredTiger" {
			return command.BadOption("%s is not a registered storage engine for this server", engine)
		}
		for k, c := range value.Elements(v.Doc()) {
			if k != "configString" {
				return command.BadOption("'%s' is not a supported option in storageEngine.wiredTiger", k)
			}
			if c.T != value.String {
				return mongoerr.New(mongoerr.TypeMismatch, "storageEngine.wiredTiger.configString must be a string.")
			}
			if err := checkConfigString(c.Str()); err != nil {
				return err
			}
		}
	}
	return nil
}

// tableSettings are the settings that a configString may name.
var tableSettings = map[string]bool{
	"allocation_size": true, "app_metadata": true, "block_allocation": true, "block_compressor": true, "cache_resident": true, "checksum": true,
	"collator": true, "columns": true, "dictionary": true, "encryption": true, "format": true, "huffman_key": true, "huffman_value": true,
	"ignore_in_memory_cache_size": true, "internal_item_max": true, "internal_key_max": true, "internal_key_truncate": true,
	"internal_page_max": true, "key_format": true, "key_gap": true, "leaf_item_max": true, "leaf_key_max": true, "leaf_page_max": true,
	"leaf_value_max": true, "log": true, "lsm": true, "memory_page_image_max": true, "memory_page_max": true, "os_cache_dirty_max": true,
	"os_cache_max": true, "prefix_compression": true, "prefix_compression_min": true, "split_deepen_min_child": true,
	"split_deepen_per_child": true, "split_pct": true, "type": true, "value_format": true, "access_pattern_hint": true, "assert": true,
	"readonly": true, "tiered_object": true, "tiered_storage": true, "verbose": true, "write_timestamp_usage": true,
}

func checkConfigString(s string) error {
	if strings.IndexByte(s, 0) >= 0 {
		return mongoerr.New(mongoerr.FailedToParse, "configString cannot contain null bytes")
	}
	depth, start := 0, 0
	check := func(setting string) error {
		name, _, _ := strings.Cut(strings.TrimSpace(setting), "=")
		if name = strings.TrimSpace(name); name != "" && !tableSettings[name] {
			return mongoerr.Newf(mongoerr.BadValue, "unknown configuration key: '%s'", name)
		}
		return nil
	}
	for i, c := range s {
		switch c {
		case '(', '[':
			depth++
		case ')', ']':
			depth--
		case ',':
			if depth == 0 {
				if err := check(s[start:i]); err != nil {
					return err
				}
				start = i + 1
			}
		}
	}
	return check(s[start:])
}

// checkIndexOptionDefaults checks create's indexOptionDefaults.
func checkIndexOptionDefaults(doc []byte) error {
	f, err := command.ParseFields("create.indexOptionDefaults", doc, []command.Field{command.Opt("storageEngine", command.TObject)})
	if err != nil {
		return err
	}
	return checkStorageEngine(f[0].Doc())
}
