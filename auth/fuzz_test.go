package auth

import (
	"bytes"
	"encoding/asn1"
	"strings"
	"testing"
)

// Whatever a client sends instead of the messages of SCRAM, it is not authenticated.
func FuzzSCRAM(f *testing.F) {
	for _, seed := range [][2]string{
		{"n,,n=ann,r=fyko+d2lbbFgONRv9qkxdawL", "c=biws,r=fyko+d2lbbFgONRv9qkxdawL,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="},
		{"y,a=bob,n=a=2Cb=3D,r=x", ""},
		{"p=tls-unique,,n=ann,r=x", "c=,r=,p="},
		{"n,,m=x,n=ann,r=x", "v=x"},
	} {
		f.Add(seed[0], seed[1], true)
		f.Add(seed[0], seed[1], false)
	}
	known, err := NewCredentials(SHA256, "never guessed 5f1c", 5000)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, first, second string, sha1 bool) {
		mech := SHA256
		if sha1 {
			mech = SHA1
		}
		asked := ""
		c := NewConversation(mech, "admin", func(user string) ([]Credentials, error) {
			asked = user
			return []Credentials{known}, nil
		})
		for _, msg := range []string{first, second, ""} {
			answer, done, err := c.Step([]byte(msg))
			if done || c.Authenticated() {
				t.Fatalf("%q, %q: %s is authenticated", first, second, asked)
			}
			if err != nil {
				if answer != nil {
					t.Errorf("an error with the answer %q", answer)
				}
				return
			}
			if strings.Contains(string(answer), string(known.StoredKey)) {
				t.Error("the answer contains the stored key")
			}
		}
	})
}

// A message of PLAIN is read as it was written, and any other text without a panic.
func FuzzParsePlain(f *testing.F) {
	for _, seed := range []string{"\x00ann\x00secret", "ann\x00ann\x00s", "bob\x00ann\x00s", "ann", "\x00\x00", "\x00a\x00b\x00c", "\x00\xff\x00x"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		user, password, err := ParsePlain(msg)
		if err != nil {
			return
		}
		if s := string(msg); s != "\x00"+user+"\x00"+password && s != user+"\x00"+user+"\x00"+password || user == "" || password == "" {
			t.Errorf("%q: %q and %q", msg, user, password)
		}
	})
}

// The extension of members' certificates is one UTF8String, nothing before or after it.
func FuzzMembershipExtension(f *testing.F) {
	for _, seed := range []string{"\x0c\x01a", "\x0c\x00", "\x13\x01a", "\x0c\x02a", "\x0c\x01ab", "\x2c\x03\x0c\x01a", "\x0c\x81\x01a", "\x0c\x01\xff", ""} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, der []byte) {
		name, ok := utf8String(der)
		if !ok {
			return
		}
		again, err := asn1.MarshalWithParams(name, "utf8")
		if err != nil || !bytes.Equal(again, der) {
			t.Errorf("%x was read as %q, which is %x (%v)", der, name, again, err)
		}
	})
}
