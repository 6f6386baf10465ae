package replication

import (
	"encoding/hex"
	"slices"
	"strings"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Validate checks the configuration on its own.
func (c *SetConfig) Validate() error {
	bad := func(format string, args ...any) error {
		return mongoerr.Newf(mongoerr.InvalidReplicaSetConfig, format, args...)
	}
	switch {
	case c.Name == "":
		return bad("Replica set configuration must have non-empty _id field")
	case len(c.Members) == 0 || len(c.Members) > MaxMembers:
		return bad("Replica set configuration contains %d members, but must have at least 1 and no more than %d", len(c.Members), MaxMembers)
	case c.ProtocolVersion == 0:
		return bad("Support for replication protocol version 0 was removed in MongoDB 4.0. Downgrade to MongoDB version 3.6 and upgrade your protocol version to 1 before upgrading your MongoDB version")
	case c.ProtocolVersion != 1:
		return bad("protocolVersion of %d is not supported; 1 is the only one", c.ProtocolVersion)
	}
	var electable, local int
	for i := range c.Members {
		m := &c.Members[i]
		if err := c.checkMember(m); err != nil {
			return err
		}
		for j := range c.Members[:i] {
			o := &c.Members[j]
			if o.ID == m.ID {
				return bad("Found two member configurations with same _id field, members.%d._id == members.%d._id == %d", j, i, m.ID)
			}
			if o.Host == m.Host {
				return bad("Found two member configurations with same host field, members.%d.host == members.%d.host == %s", j, i, m.Host)
			}
		}
		if isLocalHost(m.Host) {
			local++
		}
		if m.Electable() {
			electable++
		}
	}
	switch voters := c.Voters(); {
	case local != 0 && local != len(c.Members):
		return bad("Either all host names in a replica set configuration must be localhost references, or none must be; found %d out of %d",
			local, len(c.Members))
	case voters == 0 || voters > MaxVotingMembers:
		return bad("Replica set configuration contains %d voting members, but must be at least 1 and no more than %d", voters, MaxVotingMembers)
	case electable == 0:
		return bad("Replica set configuration must contain at least one non-arbiter member with priority > 0")
	}
	if err := c.checkHorizons(); err != nil {
		return err
	}
	return c.checkModes()
}

// checkMember checks one member. Arbiters and members without indexes are refused: every member eventually holds
// the same bytes as all others. Acknowledged writes survive because of that; a vote without data would break it.
func (c *SetConfig) checkMember(m *MemberConfig) error {
	bad := func(format string, args ...any) error {
		return mongoerr.Newf(mongoerr.InvalidReplicaSetConfig, format, args...)
	}
	switch {
	case m.Priority != m.Priority || m.Priority < 0 || m.Priority > maxPriority:
		return bad("priority field value of %v is out of range", m.Priority)
	case m.Votes != 0 && m.Votes != 1:
		return bad("votes field value is %d but must be 0 or 1", m.Votes)
	case m.DelaySecs < 0 || m.DelaySecs > 3600*24*366:
		return bad("secondaryDelaySecs field value of %d seconds is out of range", m.DelaySecs)
	case m.ArbiterOnly:
		return bad("Arbiters are not supported: member %s has arbiterOnly: true. A member that votes must hold data; use a data-bearing member,"+
			" with priority: 0 if it is not to become primary", m.Host)
	case m.DelaySecs > 0 && m.Priority != 0:
		return bad("Member priority must be 0 when secondaryDelaySecs is used")
	case m.Hidden && m.Priority != 0:
		return bad("Member priority must be 0 when hidden=true")
	case !m.BuildIndexes && m.Priority != 0:
		return bad("Member priority must be 0 when buildIndexes=false")
	case m.Votes == 0 && m.Priority != 0:
		return bad("Member priority must be 0 when non-voting (votes:0)")
	case c.ConfigServer && m.DelaySecs > 0:
		return bad("Members in replica set configurations being used for config servers cannot have a non-zero secondaryDelaySecs")
	case c.ConfigServer && !m.BuildIndexes:
		return bad("Members in replica set configurations being used for config servers must build indexes")
	case !m.BuildIndexes:
		return mongoerr.Newf(mongoerr.NotImplemented, "buildIndexes: false: members without indexes (member %s)", m.Host)
	}
	return nil
}

// checkHorizons checks that all members have the same horizons, and that no two of them share an address.
func (c *SetConfig) checkHorizons() error {
	var names []string
	seen := map[string]string{}
	for i := range c.Members {
		m := &c.Members[i]
		var own []string
		for _, h := range m.Horizons {
			switch {
			case h.Name == "" || h.Name == "__default":
				return mongoerr.Newf(mongoerr.InvalidReplicaSetConfig, "Horizons cannot have the name \"%s\"", h.Name)
			case slices.Contains(own, h.Name):
				return mongoerr.Newf(mongoerr.InvalidReplicaSetConfig, "Duplicate horizon name found \"%s\"", h.Name)
			case seen[h.Value] != "":
				return mongoerr.Newf(mongoerr.InvalidReplicaSetConfig, "Duplicate horizon member found \"%s\": members %s and %s", h.Value, seen[h.Value], m.Host)
			}
			own = append(own, h.Name)
			seen[h.Value] = m.Host
		}
		slices.Sort(own)
		if i == 0 {
			names = own
		} else if !slices.Equal(names, own) {
			return mongoerr.Newf(mongoerr.InvalidReplicaSetConfig, "Each member of a replica set must have the same horizon names: member %s has [%s], member %s has [%s]",
				c.Members[0].Host, strings.Join(names, ", "), m.Host, strings.Join(own, ", "))
		}
	}
	return nil
}

// checkModes checks that all members together can satisfy each custom write concern.
func (c *SetConfig) checkModes() error {
	for i := range c.Settings.Modes {
		m := &c.Settings.Modes[i]
		for _, n := range m.Needs {
			if !slices.ContainsFunc(c.Members, func(mc MemberConfig) bool { return mc.Tag(n.Tag) != "" }) {
				return mongoerr.Newf(mongoerr.InvalidReplicaSetConfig, "getLastErrorModes.%s: no such tag %s in the tags of any member", m.Name, n.Tag)
			}
		}
		if m.Name == "majority" {
			return mongoerr.New(mongoerr.InvalidReplicaSetConfig, "getLastErrorModes: majority is the name of a built-in write concern")
		}
	}
	return nil
}

func isLocalHost(host string) bool {
	return strings.HasPrefix(host, "localhost:") || strings.HasPrefix(host, "127.0.0.1:") || strings.HasPrefix(host, "[::1]:")
}

// ValidateInitiate checks a configuration that replSetInitiate gives to a node of a set called name.
func (c *SetConfig) ValidateInitiate(name string, configsvr bool) error {
	switch {
	case c.Name != name:
		return mongoerr.Newf(mongoerr.InvalidReplicaSetConfig,
			"Attempting to initiate a replica set with name %s, but command line reports %s; rejecting", c.Name, name)
	case c.Version != 1:
		return mongoerr.Newf(mongoerr.InvalidReplicaSetConfig,
			"Configuration used to initiate a replica set must have version 1, but found %d", c.Version)
	case c.Term != NoTerm && c.Term != 0:
		return mongoerr.Newf(mongoerr.InvalidReplicaSetConfig, "Configuration used to initiate a replica set must have term -1, but found %d", c.Term)
	case c.Settings.ID != [12]byte{}:
		return mongoerr.New(mongoerr.InvalidReplicaSetConfig, "replica set configuration cannot contain 'replicaSetId' field when called from replSetInitiate")
	}
	return c.CheckConfigServer(configsvr)
}

// CheckConfigServer checks that the configuration and the node's start options agree about config servers.
func (c *SetConfig) CheckConfigServer(configsvr bool) error {
	switch {
	case configsvr && !c.ConfigServer:
		return mongoerr.New(mongoerr.InvalidReplicaSetConfig, "Nodes started with the --configsvr flag must have configsvr:true in their config")
	case !configsvr && c.ConfigServer:
		return mongoerr.New(mongoerr.InvalidReplicaSetConfig, "Nodes being used for config servers must be started with the --configsvr flag")
	}
	return nil
}

// ValidateReconfig checks that c may follow old. Without force the version must grow and at most one voting member
// may be added or removed, or gain or lose its vote. Any number of other changes may accompany that. (The change
// itself is carried out by joint consensus; the limit is the real server's, which clients rely on.) With force any
// members are accepted, and any version greater than the old one.
func (c *SetConfig) ValidateReconfig(old *SetConfig, force bool) error {
	incompatible := func(format string, args ...any) error {
		return mongoerr.Newf(mongoerr.NewReplicaSetConfigurationIncompatible, format, args...)
	}
	switch {
	case c.Name != old.Name:
		return incompatible("New and old configurations differ in replica set name; old was %s, and new is %s", old.Name, c.Name)
	case c.Version <= old.Version && !force:
		return incompatible("New replica set configuration version must be greater than old, but %d is not greater than %d for replica set %s",
			c.Version, old.Version, c.Name)
	case c.Settings.ID != old.Settings.ID && c.Settings.ID != [12]byte{}:
		return incompatible("New and old configurations differ in replica set ID; old was %s, and new is %s",
			hex.EncodeToString(old.Settings.ID[:]), hex.EncodeToString(c.Settings.ID[:]))
	case c.ConfigServer != old.ConfigServer:
		return incompatible("New and old configurations differ in the setting of the configsvr field; old was %t, and new is %t", old.ConfigServer, c.ConfigServer)
	}
	for i := range c.Members {
		m := &c.Members[i]
		if o := old.ByHost(m.Host); o != nil && o.ID != m.ID {
			return incompatible("New and old configurations both have members with host of %s but in the new configuration the _id field is %d and in the old configuration it is %d for replica set %s",
				m.Host, m.ID, o.ID, c.Name)
		}
		if o := old.Member(m.ID); o != nil && o.Host == m.Host && o.BuildIndexes != m.BuildIndexes {
			return incompatible("New and old configurations differ in the setting of the buildIndexes field for member %s; to make this change, remove then re-add the member", m.Host)
		}
	}
	if n := len(VoterChanges(old, c)); n > 1 && !force {
		return mongoerr.New(mongoerr.InvalidReplicaSetConfig, "Non force replica set reconfig can only add or remove at most 1 voting member.")
	}
	return nil
}

// VoterChanges lists the _ids of the members that vote in only one of two configurations.
func VoterChanges(old, c *SetConfig) (ids []int) {
	votes := func(in *SetConfig, m *MemberConfig) bool {
		o := in.Member(m.ID)
		return o != nil && o.Voter()
	}
	for i := range old.Members {
		if m := &old.Members[i]; m.Voter() && !votes(c, m) {
			ids = append(ids, m.ID)
		}
	}
	for i := range c.Members {
		if m := &c.Members[i]; m.Voter() && !votes(old, m) {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// CheckWriteConcern reports whether the set, with all its members up, can satisfy wc.
func (c *SetConfig) CheckWriteConcern(wc WriteConcern) error {
	if wc.Tag != "" && c.mode(wc.Tag) == nil {
		return mongoerr.Newf(mongoerr.UnknownReplWriteConcern, "No write concern mode named '%s' found in replica set configuration", wc.Tag)
	}
	if !c.Satisfied(wc, func(int) bool { return true }) {
		return mongoerr.New(mongoerr.UnsatisfiableWriteConcern, "Not enough data-bearing nodes")
	}
	return nil
}
