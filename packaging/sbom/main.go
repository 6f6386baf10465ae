package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

type document struct {
	Version       string         `json:"spdxVersion"`
	License       string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Created       creation       `json:"creationInfo"`
	Packages      []spdxPackage  `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID        string     `json:"SPDXID"`
	Name      string     `json:"name"`
	Version   string     `json:"versionInfo"`
	Location  string     `json:"downloadLocation"`
	Analyzed  bool       `json:"filesAnalyzed"`
	Checksums []checksum `json:"checksums,omitempty"`
	Refs      []external `json:"externalRefs,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type external struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	From string `json:"spdxElementId"`
	Kind string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: sbom BINARY NAME VERSION")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(path, name, version string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(raw)
	self := hex.EncodeToString(sum[:])
	doc := document{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: name,
		Namespace: "https://spdx.org/spdxdocs/" + name + "-" + self,
		Created:   creation{time.Now().UTC().Format(time.RFC3339), []string{"Tool: shoal packaging/sbom"}},
		Packages: []spdxPackage{{ID: "SPDXRef-binary", Name: name, Version: version, Location: "NOASSERTION",
			Checksums: []checksum{{"SHA256", self}}}},
		Relationships: []relationship{{"SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-binary"}},
	}
	doc.add("SPDXRef-go", spdxPackage{Name: "go", Version: strings.TrimPrefix(info.GoVersion, "go")})
	for i, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		p := spdxPackage{Name: m.Path, Version: m.Version, Refs: []external{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + m.Path + "@" + m.Version}}}
		doc.add(fmt.Sprintf("SPDXRef-module-%d", i), p)
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	return out.Encode(doc)
}

// add records a package that the binary contains.
func (d *document) add(id string, p spdxPackage) {
	p.ID, p.Location = id, "NOASSERTION"
	d.Packages = append(d.Packages, p)
	d.Relationships = append(d.Relationships, relationship{"SPDXRef-binary", "CONTAINS", id})
}
