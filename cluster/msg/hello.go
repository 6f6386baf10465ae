package msg

import "github.com/shoaldb/shoal/query/value"

// This file has the messages about nodes and their connections. All but InternalClient are available to clients, too.

// Hello asks a node for its role and its set.
type Hello struct {
	Internal *InternalClient  // nil for the hello of a client
	Known    *TopologyVersion // the reply is sent when the node's version differs, or after Await
	Await    int64            // in milliseconds; 0 for none
}

// InternalClient identifies the sender of a hello as a node.
type InternalClient struct {
	MinWire, MaxWire int64
	Process          [16]byte
	Every            int64 // milliseconds until the process sends its next hello on this connection; 0 if not announced
}

// TopologyVersion counts the changes of a node's state that hello reports.
type TopologyVersion struct {
	Process [12]byte
	Counter int64
}

func (m *Hello) fields(c *codec) {
	c.plain("hello")
	opt(c, "internalClient", &m.Internal, func(c *codec, x *InternalClient) {
		c.int64("minWireVersion", required, &x.MinWire)
		c.int64("maxWireVersion", required, &x.MaxWire)
		c.uuid("process", &x.Process)
		c.int64("everyMillis", optional, &x.Every)
	})
	opt(c, "topologyVersion", &m.Known, func(c *codec, x *TopologyVersion) {
		c.objectID("processId", required, &x.Process)
		c.int64("counter", required, &x.Counter)
	})
	c.int64("maxAwaitTimeMS", optional, &m.Await)
}

// Ping asks for a reply, which has the node's cluster time.
type Ping struct{}

func (m *Ping) fields(c *codec) { c.plain("ping") }

// Authenticate authenticates the sender by the certificate that it has presented.
type Authenticate struct{ DB, Mechanism string }

func (m *Authenticate) fields(c *codec) {
	c.plain("authenticate")
	c.sentTo(&m.DB)
	c.str("mechanism", required, &m.Mechanism)
}

// SASLStart begins a SASL conversation.
type SASLStart struct {
	DB, Mechanism string
	Payload       []byte
	SkipEmpty     bool // the conversation ends without an empty message
}

func (m *SASLStart) fields(c *codec) {
	c.plain("saslStart")
	c.sentTo(&m.DB)
	c.str("mechanism", required, &m.Mechanism)
	c.binary("payload", &m.Payload)
	c.nested("options", optional, !m.SkipEmpty, func(c *codec) { c.boolean("skipEmptyExchange", required, &m.SkipEmpty) })
}

// SASLContinue continues a SASL conversation.
type SASLContinue struct {
	DB           string
	Conversation int64
	Payload      []byte
}

func (m *SASLContinue) fields(c *codec) {
	c.plain("saslContinue")
	c.sentTo(&m.DB)
	c.int64("conversationId", required, &m.Conversation)
	c.binary("payload", &m.Payload)
}

// RefreshSessions makes a node write the sessions that were used on it.
type RefreshSessions struct{}

func (m *RefreshSessions) fields(c *codec) { c.plain("refreshLogicalSessionCacheNow") }

// KillSessions, KillAllSessions and KillSessionsByPattern end sessions and all that is open in them; nodes name the owner of each session.
type (
	KillSessions          struct{ Which value.Value }
	KillAllSessions       struct{ Which value.Value }
	KillSessionsByPattern struct{ Which value.Value }
)

func (m *KillSessions) fields(c *codec)          { c.value("killSessions", &m.Which) }
func (m *KillAllSessions) fields(c *codec)       { c.value("killAllSessions", &m.Which) }
func (m *KillSessionsByPattern) fields(c *codec) { c.value("killAllSessionsByPattern", &m.Which) }

// KillOp interrupts an operation.
type KillOp struct{ ID int64 }

func (m *KillOp) fields(c *codec) {
	c.plain("killOp")
	c.int64("op", required, &m.ID)
}

// GetClusterParameter asks for cluster parameters; "*" is all.
type GetClusterParameter struct{ Name string }

func (m *GetClusterParameter) fields(c *codec) { c.on("getClusterParameter", &m.Name) }
