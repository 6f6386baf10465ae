package command

import (
	"context"
	"crypto/tls"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/cluster"
)

// Client identifies the sender of a request: a connection, or a router in the same process.
type Client struct {
	ID        int64
	Remote    string
	Local     string
	InProcess bool // a node of the same process: replies to it have no times, and errors keep their internal details
	Internal  bool // a node of the cluster, over a socket
	// Own is set for the node's own work, which is exempt from the rules of read preference.
	Own      bool
	Loopback bool
	// Via is the address of the load balancer that made the connection; empty without.
	Via     string
	Started time.Time
	// TLS describes the connection's encryption; nil, or returning nil, if there is none.
	TLS func() *tls.ConnectionState

	// Compressors enables on the connection those of the client's list that the server knows, and returns them;
	// nil if the client cannot receive compressed replies.
	Compressors func(names []string) []string
	// Close ends the connection; nil if there is none.
	Close func()
	// Trust informs the connection whether its client has authenticated; nil if there is none.
	Trust func(trusted bool)

	gone           atomic.Bool
	lastReceived   atomic.Int64                  // when a node's last message arrived, in nanoseconds
	login          atomic.Pointer[auth.Identity] // the authenticated identity, nil for none
	claimsInternal bool                          // its hello claims that it is a member, which it has to prove
	attempt        *attempts                     // where the success of its authentication in progress is counted; nil for none
	ctx            func() context.Context

	mu struct {
		sync.Mutex
		metadata []byte // the client document of its first hello
		appName  string
		uuid     [16]byte      // made on first use
		process  [16]byte      // of a node: its process; zero if it has not announced one
		every    time.Duration // of a node: its announced interval of messages on this connection; 0 if it has not announced one
		// authenticating is the authentication in progress, nil for none.
		authenticating *login
	}
}

// NewClient returns the client of a connection; ctx returns a context that ends with the connection, and is
// called only by operations that wait.
func NewClient(id int64, remote, local string, ctx func() context.Context) *Client {
	return &Client{ID: id, Remote: remote, Local: local, ctx: ctx, Started: time.Now()}
}

// ServerName returns the server name (SNI) of the client's TLS handshake, empty if none.
func (c *Client) ServerName() string {
	if c.TLS == nil {
		return ""
	}
	if state := c.TLS(); state != nil {
		return state.ServerName
	}
	return ""
}

// Context returns a context that ends when the client disconnects; nil if it cannot disconnect.
func (c *Client) Context() context.Context {
	if c.ctx == nil {
		return nil
	}
	return c.ctx()
}

// Gone marks the client as disconnected: its running operations stop at their next check.
func (c *Client) Gone() { c.gone.Store(true) }

// SetMetadata stores the client document of the first hello; false if one was stored before.
func (c *Client) SetMetadata(doc []byte, app string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.metadata != nil {
		return false
	}
	c.mu.metadata = append([]byte(nil), doc...)
	c.mu.appName = app
	return true
}

// Metadata returns the stored client document, nil if none, and its application name.
func (c *Client) Metadata() (doc []byte, app string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.metadata, c.mu.appName
}

// hasMetadata reports whether the client has described itself.
func (c *Client) hasMetadata() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.metadata != nil
}

// setProcess records what a node announces: its process, and how often it will send messages on this connection.
func (c *Client) setProcess(id [16]byte, every time.Duration) {
	c.received(time.Now())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.process, c.mu.every = id, every
}

func (c *Client) received(now time.Time) { c.lastReceived.Store(now.UnixNano()) }

// Process returns the cluster process to which the connection belongs; zero for others.
func (c *Client) Process() [16]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.process
}

// UUID identifies the client as long as it is connected.
func (c *Client) UUID() [16]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.uuid == ([16]byte{}) {
		c.mu.uuid = cluster.NewUUID()
	}
	return c.mu.uuid
}

// OwnClient returns the client that a node's own work is done for.
func OwnClient() *Client {
	return &Client{InProcess: true, Internal: true, Own: true, Remote: "local", Started: time.Now()}
}
