package main

import "strings"

// tlsOption is one setting of net.tls with its legacy names.
type tlsOption struct {
	name, path       string // tlsX, and its key in net.tls
	oldName, oldPath string // sslX and its key in net.ssl; empty if there is none
	kind             kind
	help             string
	set              func(o *tlsOptions) func(c *config, v string) error // nil: accepted without effect
}

func tlsText(at func(o *tlsOptions) *string) func(o *tlsOptions) func(*config, string) error {
	return func(o *tlsOptions) func(*config, string) error {
		return func(_ *config, v string) error { *at(o) = v; return nil }
	}
}

func tlsFlag(at func(o *tlsOptions) *bool) func(o *tlsOptions) func(*config, string) error {
	return func(o *tlsOptions) func(*config, string) error {
		return truth(func(_ *config, v bool) { *at(o) = v })
	}
}

func tlsRefused(name, why string) func(o *tlsOptions) func(*config, string) error {
	return func(*tlsOptions) func(*config, string) error { return refused(name, why) }
}

var tlsSettings = []tlsOption{
	{"tlsCertificateKeyFile", "certificateKeyFile", "sslPEMKeyFile", "PEMKeyFile", textKind, "Certificate and key file for TLS",
		tlsText(func(o *tlsOptions) *string { return &o.KeyFile })},
	{"tlsCertificateKeyFilePassword", "certificateKeyFilePassword", "sslPEMKeyPassword", "PEMKeyPassword", textKind, "Password to unlock the key in the TLS certificate key file",
		tlsText(func(o *tlsOptions) *string { return &o.KeyPassword })},
	{"tlsClusterFile", "clusterFile", "sslClusterFile", "clusterFile", textKind, "Key file for connections between members; the certificate key file by default",
		tlsText(func(o *tlsOptions) *string { return &o.ClusterFile })},
	{"tlsClusterPassword", "clusterPassword", "sslClusterPassword", "clusterPassword", textKind, "Password to unlock the key in the cluster file",
		tlsText(func(o *tlsOptions) *string { return &o.ClusterPassword })},
	{"tlsCAFile", "CAFile", "sslCAFile", "CAFile", textKind, "Certificate authority file for TLS",
		tlsText(func(o *tlsOptions) *string { return &o.CAFile })},
	{"tlsClusterCAFile", "clusterCAFile", "sslClusterCAFile", "clusterCAFile", textKind, "Certificate authority for the certificates of clients; the CA file by default",
		tlsText(func(o *tlsOptions) *string { return &o.ClusterCAFile })},
	{"tlsCRLFile", "CRLFile", "sslCRLFile", "CRLFile", textKind, "Certificate revocation list file for TLS",
		tlsText(func(o *tlsOptions) *string { return &o.CRL })},
	{"tlsDisabledProtocols", "disabledProtocols", "sslDisabledProtocols", "disabledProtocols", textKind, "Comma separated list of TLS protocols to disable [TLS1_0,TLS1_1,TLS1_2,TLS1_3]",
		tlsText(func(o *tlsOptions) *string { return &o.Disabled })},
	{"tlsAllowConnectionsWithoutCertificates", "allowConnectionsWithoutCertificates", "sslAllowConnectionsWithoutCertificates", "allowConnectionsWithoutCertificates", flagKind, "Allow client to connect without presenting a certificate",
		tlsFlag(func(o *tlsOptions) *bool { return &o.NoClientCerts })},
	{"tlsAllowInvalidCertificates", "allowInvalidCertificates", "sslAllowInvalidCertificates", "allowInvalidCertificates", flagKind, "Allow connections to servers with invalid certificates",
		tlsFlag(func(o *tlsOptions) *bool { return &o.InvalidCerts })},
	{"tlsAllowInvalidHostnames", "allowInvalidHostnames", "sslAllowInvalidHostnames", "allowInvalidHostnames", flagKind, "Allow server certificates to provide non-matching hostnames",
		tlsFlag(func(o *tlsOptions) *bool { return &o.InvalidHosts })},
	{"tlsClusterAuthX509Attributes", "clusterAuthX509.attributes", "", "", textKind, "Attributes of the subject, as in \"O=shop, OU=db\", by which certificates of members are recognised; O, OU and DC of the server's own certificate by default",
		tlsText(func(o *tlsOptions) *string { return &o.MemberAttributes })},
	{"tlsClusterAuthX509ExtensionValue", "clusterAuthX509.extensionValue", "", "", textKind, "Value of the extension 1.3.6.1.4.1.34601.2.1.2 by which certificates of members are recognised, whatever their subjects are",
		tlsText(func(o *tlsOptions) *string { return &o.MemberExtension })},
	{"tlsFIPSMode", "FIPSMode", "sslFIPSMode", "FIPSMode", flagKind, "Refused: the binary is not validated for FIPS 140",
		tlsRefused("tlsFIPSMode", "this binary's cryptography is not validated")},
	{"tlsCertificateSelector", "certificateSelector", "", "", textKind, "Refused: there is no system certificate store on this platform",
		tlsRefused("tlsCertificateSelector", "there is no system certificate store on this platform")},
	{"tlsClusterCertificateSelector", "clusterCertificateSelector", "", "", textKind, "Refused: there is no system certificate store on this platform",
		tlsRefused("tlsClusterCertificateSelector", "there is no system certificate store on this platform")},
	{"tlsLogVersions", "logVersions", "", "", textKind, "Comma separated list of TLS protocols whose connections are logged [TLS1_0,TLS1_1,TLS1_2,TLS1_3]",
		tlsText(func(o *tlsOptions) *string { return &o.LogVersions })},
}

// encryptionOptions returns the rows of net.tls under both names.
func encryptionOptions() []option {
	mode := func(name string, values ...string) func(*config, string) error {
		return func(c *config, v string) error {
			if err := only(name, values...)(c, v); err != nil {
				return err
			}
			c.TLS.Mode = tlsModes[v]
			return nil
		}
	}
	rows := []option{
		{name: "tlsMode", path: "net.tls.mode", kind: textKind, on: isBoth | isStart, help: "Set the TLS operation mode (disabled|allowTLS|preferTLS|requireTLS)",
			set: mode("tlsMode", "disabled", "allowTLS", "preferTLS", "requireTLS")},
		{name: "sslMode", path: "net.ssl.mode", kind: textKind, on: isBoth | isStart, help: "The old name of --tlsMode (disabled|allowSSL|preferSSL|requireSSL)",
			set: mode("sslMode", "disabled", "allowSSL", "preferSSL", "requireSSL")},
	}
	for _, s := range tlsSettings {
		row := option{name: s.name, path: "net.tls." + s.path, kind: s.kind, on: isBoth | isStart, help: s.help, secret: strings.HasSuffix(s.name, "Password")}
		if s.set != nil {
			row.set = func(c *config, v string) error {
				c.TLS.Any = true
				return s.set(&c.TLS)(c, v)
			}
		}
		rows = append(rows, row)
		if s.oldName != "" {
			row.name, row.path, row.help = s.oldName, "net.ssl."+s.oldPath, "The old name of --"+s.name
			rows = append(rows, row)
		}
	}
	return rows
}
