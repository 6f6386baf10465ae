package oidc

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// A client that goes away while the provider is asked for its key takes the answer from nobody: one that did so again and again would keep
// everybody from a new key.
func TestClientsThatLeaveDoNotEndTheQuestion(t *testing.T) {
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	asked, answer := make(chan struct{}), make(chan struct{})
	var questions atomic.Int32
	var url string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/keys" {
			_ = json.NewEncoder(w).Encode(map[string]string{"issuer": url, "jwks_uri": url + "/keys"})
			return
		}
		if questions.Add(1) == 1 {
			close(asked)
		}
		select {
		case <-answer:
		case <-r.Context().Done():
			return
		}
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: public, KeyID: "new", Algorithm: "EdDSA", Use: "sig"}}})
	}))
	defer server.Close()
	url = server.URL
	var changes atomic.Uint64
	now := time.Now() // stands still: later calls are within the pause
	i := &issuer{url: url, client: server.Client(), clock: func() time.Time { return now }, changes: &changes}
	leaves, leave := context.WithCancel(context.Background())
	first := make(chan error, 1)
	go func() {
		_, err := i.key(leaves, context.Background(), "made up")
		first <- err
	}()
	<-asked
	leave()
	select {
	case err := <-first:
		t.Errorf("the question ended with the client who asked: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	close(answer)
	if k, err := i.key(context.Background(), context.Background(), "new"); err != nil || k.KeyID != "new" {
		t.Errorf("the key that the provider has told: %v", err)
	}
	if n := questions.Load(); n != 1 {
		t.Errorf("%d questions", n)
	}
}
