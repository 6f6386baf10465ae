package router

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
)

// Users and roles of a cluster are stored on the config server. A router relays the commands on them, and caches what it
// reads until a command of its own changes it, or until it finds that it has been changed elsewhere.

// UseAccess gives the router access to users; commands that change them go to the config server.
func (r *Router) UseAccess(a *command.Access) {
	a.Users, a.Changes = r.config, r.usersChanged
	a.Install(r.Service)
	for _, s := range a.ManagementSpecs() {
		changes := s.PrimaryOnly
		s.PrimaryOnly = false
		s.Run = r.toConfig
		if changes {
			s.Run = func(op *command.Op, dst []byte) ([]byte, error) {
				defer a.Refresh(context.WithoutCancel(op))
				return r.toConfig(op, dst)
			}
		}
		r.Service.Table.Add(s)
	}
}

// usersChanged asks the config server for the state of users and roles.
func (r *Router) usersChanged(ctx context.Context) (command.UserState, error) {
	reply, err := cluster.Run(ctx, r.config, msg.Doc(&msg.UserCacheGeneration{}))
	if err != nil {
		return command.UserState{}, err
	}
	var now msg.UserCacheGenerationReply
	err = msg.Parse(reply, &now)
	return command.UserState{Epoch: now.Epoch, Generation: uint64(now.Generation)}, err
}

// watchUsers periodically asks the config server whether users or roles have changed.
func (r *Router) watchUsers(ctx context.Context) {
	var known command.UserState // no process has the zero epoch
	for {
		if now, err := r.usersChanged(ctx); err == nil {
			if known != now && known.Epoch != [12]byte{} {
				r.Service.Access.Refresh(ctx)
			}
			known = now
		}
		select {
		case <-time.After(time.Duration(r.Params.Int("userCacheInvalidationIntervalSecs")) * time.Second):
		case <-ctx.Done():
			return
		}
	}
}
