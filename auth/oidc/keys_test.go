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

// A client that disconnects while the provider's keys are being fetched does not end the request: by doing so again and again it would keep
// all others from a new key.
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
	var quiesce atomic.Int64
	quiesce.Store(int64(time.Minute))
	now := time.Now() // stands still: later calls are within the pause
	i := &issuer{url: url, client: server.Client(), clock: func() time.Time { return now }, changes: &changes, quiesce: &quiesce}
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
		t.Errorf("the request ended with the client that caused it: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	close(answer)
	if k, err := i.key(context.Background(), context.Background(), "new"); err != nil || k.KeyID != "new" {
		t.Errorf("the key that the provider has sent: %v", err)
	}
	if n := questions.Load(); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// Tokens with unknown keys make the server read a provider's keys once per JWKSMinimumQuiescePeriodSecs; polling and a provider that has not replied have
// separate pauses.
func TestQuiescePeriod(t *testing.T) {
	questions, down := 0, false
	var url string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/keys" {
			if down {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			_ = json.NewEncoder(w).Encode(map[string]string{"issuer": url, "jwks_uri": url + "/keys"})
			return
		}
		questions++
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{})
	}))
	defer server.Close()
	url = server.URL
	now := time.Now()
	r := NewRegistry(func() time.Time { return now })
	r.Set([]*Provider{{Issuer: url}})
	i := r.mu.issuers[url]
	ctx := context.Background()
	for _, step := range []struct {
		quiesce, after time.Duration
		poll, down     bool
		asked          int
	}{
		{quiesce: time.Minute, asked: 1}, // never asked before
		{quiesce: time.Minute, after: 59 * time.Second},
		{quiesce: time.Minute, after: time.Second, asked: 1},
		{quiesce: time.Minute, after: time.Second, poll: true},
		{quiesce: time.Minute, after: 5 * time.Second, poll: true, asked: 1},
		{quiesce: 10 * time.Second, after: 9 * time.Second},
		{quiesce: 10 * time.Second, after: time.Second, asked: 1},
		{asked: 1}, {asked: 1}, // without a period each token causes a request
		{quiesce: time.Minute, after: time.Minute, down: true},
		{quiesce: time.Minute, after: 4 * time.Second},
		{quiesce: time.Minute, after: time.Second, asked: 1},
	} {
		now = now.Add(step.after)
		r.SetQuiesce(step.quiesce)
		before := questions
		down = step.down
		if step.poll {
			_ = i.renew(ctx, time.Second)
		} else if _, err := i.key(ctx, ctx, "made up"); err == nil {
			t.Fatal("a token with an unknown key is accepted")
		}
		if got := questions - before; got != step.asked {
			t.Errorf("%+v: asked %d times", step, got)
		}
	}
}
