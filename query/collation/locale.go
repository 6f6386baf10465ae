package collation

import "strings"

// languages are the languages whose rules the server has, by ICU locale id.
var languages = func() map[string]bool {
	m := map[string]bool{}
	for _, l := range strings.Fields(`af am ar as az be bg bn bo br bs ca ceb chr cs cy da de dsb dz ee el en eo es et fa ff fi fil fo
		fr fy ga gl gu ha haw he hi hr hsb hu hy id ig is it ja ka kk kl km kn ko kok ky lb lkt ln lo lt lv mk ml mn mr ms mt my
		nb ne nl nn no om or pa pl ps pt ro ru se si sk sl smn sq sr sv sw ta te th tk to tr ug uk ur uz vi wae wo xh yi yo zh zu
		nso st tn ku sa root`) {
		m[l] = true
	}
	return m
}()

// variants are the collation types that may follow @collation=, with their names in BCP 47.
var variants = map[string]string{
	"standard": "standard", "phonebook": "phonebk", "dictionary": "dict", "traditional": "trad", "big5han": "big5han",
	"gb2312han": "gb2312", "pinyin": "pinyin", "stroke": "stroke", "unihan": "unihan", "zhuyin": "zhuyin", "search": "search",
	"searchjl": "searchjl", "compat": "compat", "eor": "eor", "reformed": "reformed", "phonetic": "phonetic",
}

// splitLocale splits "de_AT@collation=phonebook" into language, script, region, variant and collation type; ok
// is false if it is not in ICU's canonical form.
func splitLocale(id string) (lang string, rest []string, variant string, ok bool) {
	id, keywords, has := strings.Cut(id, "@")
	if has {
		var name string
		if name, variant, ok = strings.Cut(keywords, "="); !ok || name != "collation" {
			return "", nil, "", false
		}
		if _, known := variants[variant]; !known {
			return "", nil, "", false
		}
	}
	parts := strings.Split(id, "_")
	for i, p := range parts[1:] {
		if !subtagOK(p, i) {
			return "", nil, "", false
		}
	}
	return parts[0], parts[1:], variant, len(parts) <= 4
}

// subtagOK checks a script (Latn), a region (US, 419) or a variant (POSIX).
func subtagOK(p string, i int) bool {
	switch len(p) {
	case 4:
		return i == 0 && p[0] >= 'A' && p[0] <= 'Z' && strings.ToLower(p[1:]) == p[1:] && letters(p)
	case 2:
		return strings.ToUpper(p) == p && letters(p)
	case 3:
		return strings.Trim(p, "0123456789") == ""
	}
	return i > 0 && len(p) >= 5 && strings.ToUpper(p) == p
}

func letters(p string) bool {
	return strings.Trim(strings.ToLower(p), "abcdefghijklmnopqrstuvwxyz") == ""
}

func knownLocale(id string) bool {
	lang, _, _, ok := splitLocale(id)
	return ok && languages[lang]
}

// posix reports whether the locale is the one that orders ASCII by code.
func posix(id string) bool { return id == "en_US_POSIX" }

// bcp47 returns the locale in the form that x/text takes.
func bcp47(id string) string {
	lang, rest, variant, _ := splitLocale(id)
	tag := lang
	if lang == "root" {
		tag = "und"
	}
	for _, p := range rest {
		if p != "POSIX" {
			tag += "-" + p
		}
	}
	if variant != "" && variant != "standard" {
		tag += "-u-co-" + variants[variant]
	}
	return tag
}

// normalizing are the languages whose texts are normalised unless the specification says otherwise.
var normalizing = map[string]bool{
	"ar": true, "as": true, "bn": true, "fa": true, "gu": true, "he": true, "hi": true, "kn": true, "km": true, "ko": false, "kok": true,
	"lo": true, "ml": true, "mr": true, "my": true, "ne": true, "or": true, "pa": true, "si": true, "ta": true, "te": true, "th": true,
	"bo": true, "ur": true, "vi": true, "dz": true,
}

// setDefaults sets what the document omits; a few locales have their own defaults.
func (s *Spec) setDefaults(given map[string]bool) {
	lang, _, _, _ := splitLocale(s.Locale)
	def := func(name string, to *string, v string) {
		if !given[name] {
			*to = v
		}
	}
	if !given["strength"] {
		s.Strength = 3
	}
	caseFirst := "off"
	if (lang == "da" || lang == "mt") && s.Strength > 2 {
		caseFirst = "upper"
	}
	def("caseFirst", &s.CaseFirst, caseFirst)
	alternate := "non-ignorable"
	if lang == "th" {
		alternate = "shifted"
	}
	def("alternate", &s.Alternate, alternate)
	def("maxVariable", &s.MaxVariable, "punct")
	if !given["normalization"] {
		s.Normalization = normalizing[lang]
	}
	if !given["backwards"] {
		s.Backwards = s.Locale == "fr_CA" && s.Strength > 1
	}
}
