package main

import (
	"encoding/json"
	"errors"

	"go.yaml.in/yaml/v3"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// memberOverride is the parameter that names further certificates to be recognised as members', in addition to those of net.tls.clusterAuthX509.
const memberOverride = "tlsClusterAuthX509Override"

// recogniseMembers reads the options that determine which certificates are recognised as members'.
func (o *tlsOptions) recogniseMembers(params []pair) (err error) {
	if o.members, err = auth.NewMembership(o.MemberAttributes, o.MemberExtension); err != nil {
		return errors.New("BadValue: net.tls.clusterAuthX509: " + err.Error())
	}
	named := false
	for i := range params {
		switch p := &params[i]; p.Name {
		case "tlsClusterAuthX509Override":
			attributes, extension, err := parseOverride(p.Value)
			if err == nil {
				o.override, err = auth.NewMembership(attributes, extension)
			}
			if err != nil {
				return errors.New("BadValue: " + memberOverride + ": " + err.Error())
			}
			p.Value = overrideJSON(attributes, extension)
		case "tlsX509ClusterAuthDNOverride":
			named = p.Value != ""
		}
	}
	if named && o.members != nil {
		return errors.New("BadValue: " + errTwoRules.Error())
	}
	return nil
}

// checkMemberCertificates checks that these options are consistent with the way in which members authenticate.
func (c *config) checkMemberCertificates() error {
	if c.TLS.members != nil && !c.Security.byCertificate() {
		return errors.New("BadValue: net.tls.clusterAuthX509 is for members that authenticate by certificates: it needs a clusterAuthMode with X.509")
	}
	for _, p := range c.Parameters {
		if p.Name == "enforceUserClusterSeparation" && (p.Value == "false" || p.Value == "0") && c.Security.byCertificate() {
			return errors.New("BadValue: without enforceUserClusterSeparation members cannot authenticate by certificates: clusterAuthMode has to be keyFile")
		}
	}
	return nil
}

var errTwoRules = errors.New("tlsX509ClusterAuthDNOverride is about O, OU and DC, which are not compared with net.tls.clusterAuthX509: use " + memberOverride)

// parseOverride reads the parameter's document, {attributes: <string>} or {extensionValue: <string>}, in JSON or the more lenient YAML. There
// {attributes: O=a, OU=b} has the second attribute as a key without a value; it belongs to the first.
func parseOverride(text string) (attributes, extension string, err error) {
	var root yaml.Node
	if err := yaml.Unmarshal([]byte(text), &root); err != nil || len(root.Content) != 1 || root.Content[0].Kind != yaml.MappingNode {
		return "", "", errors.New("expected a document {attributes: <string>} or {extensionValue: <string>}")
	}
	return overrideOf(root.Content[0])
}

// overrideOf is parseOverride for a mapping of a configuration file.
func overrideOf(m *yaml.Node) (attributes, extension string, err error) {
	fields := m.Content
	for i := 0; i+1 < len(fields); i += 2 {
		key, v := fields[i].Value, fields[i+1]
		switch {
		case v.Kind != yaml.ScalarNode:
			return "", "", errors.New("the field " + key + " is not a string")
		case key == "attributes" && attributes == "":
			attributes = v.Value
		case key == "extensionValue" && extension == "":
			extension = v.Value
		case attributes != "" && v.ShortTag() == "!!null":
			attributes += ", " + key
		default:
			return "", "", errors.New("unknown field " + key)
		}
	}
	if attributes == "" && extension == "" && len(fields) > 0 {
		return "", "", errors.New("the value is empty")
	}
	return attributes, extension, nil
}

// overrideJSON returns the parameter's value as JSON, in which parameters are shown.
func overrideJSON(attributes, extension string) string {
	doc := map[string]string{}
	if attributes != "" {
		doc["attributes"] = attributes
	}
	if extension != "" {
		doc["extensionValue"] = extension
	}
	text, _ := json.Marshal(doc) // a map of strings can be encoded
	return string(text)
}

// checkDN checks tlsX509ClusterAuthDNOverride: a distinguished name, or empty.
func (o *tlsOptions) checkDN(_, v value.Value) (value.Value, error) {
	if v.Str() == "" {
		return v, nil
	}
	_, err := auth.ParseDN(v.Str())
	if err == nil && o.members != nil {
		err = errTwoRules
	}
	if err != nil {
		return v, mongoerr.New(mongoerr.BadValue, err.Error())
	}
	return v, nil
}
