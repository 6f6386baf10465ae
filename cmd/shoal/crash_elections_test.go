package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// lostPrimary is what happens to the primary of a set of three while a command is at one of its steps.
type lostPrimary int

const (
	stepsDown lostPrimary = iota
	isKilled
	wakesSoon // frozen until another is primary: it goes on in its old term
	wakesLate // frozen until the command is done, and done once more
	losses
	setLosesPower = losses // with all members of its set
	allLosePower  = losses + 1
)

func (l lostPrimary) String() string {
	return [...]string{
		"steps down", "is killed", "is frozen until another is primary", "is frozen until the command has ended",
		"loses its power with its whole set", "loses its power with all sets",
	}[l]
}

// lostAt is a command, one of its steps, and whose primary is lost there.
type lostAt struct {
	row    *lostRouterDDL
	step   holding
	victim killedProcess
	loss   lostPrimary
}

func (l lostAt) String() string {
	return fmt.Sprintf("%s, at %v the primary of %s %s", l.row.name, l.step.data, strings.TrimSuffix(l.victim.String(), "'s shard"), l.loss)
}

// A set of three loses its primary while a DDL, or a command to the whole cluster, is at one of its steps, beside clients' writes: the config server, the coordinator's shard
// or another shard. The next primary continues or undoes what was begun; within 30 s all nodes agree, the same command again does the rest, and a former primary that
// continues where it was frozen changes nothing. A few steps have one of the losses here; TestLostPrimariesNemesis takes all of them in random order for as long as it lasts.
func TestLostPrimaries(t *testing.T) {
	if testing.Short() {
		t.Skip("starts ten servers")
	}
	t.Parallel()
	k := newKilledAlone(t, clusterOptions{configs: 3, shards: []int{1, 3}, routers: 2})
	defer k.c.insertBeside()()
	all := k.losses(stepsDown, isKilled, wakesSoon, wakesLate)
	for i := range 5 {
		k.lostAt(all[(i*len(all)/5+i)%len(all)])
	}
	k.sameEverywhere()
}

// SHOAL_LOSSES=SEED,FIRST repeats the order of a run, from its loss number FIRST on; SHOAL_LOSSES_OF=REGEXP takes the operations alone whose names match.
func TestLostPrimariesNemesis(t *testing.T) {
	limit := nemesisTime(0)
	if limit == 0 {
		t.Skip("make nemesis runs it")
	}
	k := newKilledAlone(t, clusterOptions{configs: 3, shards: []int{3, 3}, routers: 2})
	defer k.c.insertBeside()()
	k.loseInOrder(k.losses(stepsDown, isKilled, wakesSoon, wakesLate), limit)
}

// Sets of three lose their power, and with it what their disks have not synced: a primary alone, its whole set, or all sets at the same time.
// Otherwise as above: what was begun is continued or undone within 30 s, and all members of a set agree. TestPowerLossOfSetsNemesis takes all steps.
func TestPowerLossOfSets(t *testing.T) {
	if testing.Short() {
		t.Skip("starts ten servers")
	}
	t.Parallel()
	k := newKilledAlone(t, clusterOptions{configs: 3, shards: []int{1, 3}, routers: 2, as: asVolatile})
	defer k.c.insertBeside()()
	all := k.losses(isKilled, setLosesPower, allLosePower)
	for i := range 5 {
		k.lostAt(all[(i*len(all)/5+i)%len(all)])
	}
	k.sameEverywhere()
}

// SHOAL_LOSSES is as above.
func TestPowerLossOfSetsNemesis(t *testing.T) {
	limit := nemesisTime(0)
	if limit == 0 {
		t.Skip("make nemesis runs it")
	}
	k := newKilledAlone(t, clusterOptions{configs: 3, shards: []int{3, 3}, routers: 2, as: asVolatile})
	defer k.c.insertBeside()()
	k.loseInOrder(k.losses(isKilled, setLosesPower, allLosePower), limit)
}

// loseInOrder takes losses in random order, or that of SHOAL_LOSSES, until the time is over.
func (k *killedAlone) loseInOrder(all []lostAt, limit time.Duration) {
	t := k.c.t
	t.Helper()
	if of := os.Getenv("SHOAL_LOSSES_OF"); of != "" {
		named := regexp.MustCompile(of)
		all = slices.DeleteFunc(all, func(x lostAt) bool { return !named.MatchString(x.row.name) })
	}
	seed, first := time.Now().UnixNano(), 0
	if order := os.Getenv("SHOAL_LOSSES"); order != "" {
		if _, err := fmt.Sscanf(order, "%d,%d", &seed, &first); err != nil {
			t.Fatalf("SHOAL_LOSSES=%s: %v", order, err)
		}
	}
	began, n := time.Now(), first
	defer func() {
		t.Logf("seed %d: losses %d to %d of %d in %v", seed, first, n, len(all), time.Since(began).Round(time.Second))
	}()
	rand.New(rand.NewSource(seed)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for n < len(all) && time.Since(began) < limit {
		k.lostAt(all[n])
		n++
	}
	k.sameEverywhere()
}

// A router sends a command for the whole cluster again when the config server's primary steps down while it is at work: its client is not told of it.
func TestStepDownsDuringCommandsToTheConfigServer(t *testing.T) {
	if testing.Short() {
		t.Skip("starts eight servers")
	}
	t.Parallel()
	k := newKilledAlone(t, clusterOptions{configs: 3, shards: []int{1, 1}, routers: 2})
	for i := range k.rows {
		row := &k.rows[i]
		steps := stepsOf(row)
		switch name, _, _ := strings.Cut(row.name, ","); name {
		case "addShard", "transitionFromDedicatedConfigServer":
		case "removeShard", "transitionToDedicatedConfigServer":
			row.again = mongoerr.ShardNotFound // asked for the third time
		case "setClusterParameter":
			steps = steps[:1]
		default:
			continue
		}
		for _, step := range steps {
			what := lostAt{row, step, killsConfig, stepsDown}
			if err := k.lostAt(what); err != nil {
				t.Errorf("%v: answered %v", what, err)
			}
		}
	}
}

// losses are all that may happen, of some kinds.
func (k *killedAlone) losses(kinds ...lostPrimary) (all []lostAt) {
	for i := range k.rows {
		row := &k.rows[i]
		if strings.HasPrefix(row.name, "removeShard") || strings.HasPrefix(row.name, "transitionTo") {
			row.again = mongoerr.ShardNotFound // asked for the third time
		}
		for _, step := range stepsOf(row) {
			for _, victim := range k.victims(row) {
				if rs := k.set(victim); rs == nil || len(rs.members) == 1 || victim == stepsConfigDown {
					continue
				}
				for _, loss := range kinds {
					all = append(all, lostAt{row, step, victim, loss})
				}
			}
		}
	}
	return all
}

// stepsOf returns where a command is held: at each step of what the config server conducts, at each phase of a coordinator's run, or on its way.
func stepsOf(row *lostRouterDDL) (steps []holding) {
	if row.steps != nil {
		return row.steps
	}
	for _, e := range row.hold.data {
		if e.Key != "operationType" {
			continue
		}
		phases := []string{"acquireCriticalSection", "copyCollection", "convertCollection", "releaseCriticalSection", "done"}
		for _, k := range killedOperations {
			if k.name == e.Value {
				phases = k.phases
			}
		}
		for _, p := range phases {
			steps = append(steps, atPhaseOf(e.Value.(string), p))
		}
		return steps
	}
	return []holding{row.hold}
}

// set returns the set that a process belongs to, nil for a router.
func (k *killedAlone) set(victim killedProcess) *replicaSet {
	return map[killedProcess]*replicaSet{killsConfig: k.c.config, killsOtherShard: k.c.shards[0], killsCoordinator: k.c.shards[1], killsNewShard: k.third}[victim]
}

// endsWithin is how long a command may take once all that it needs is there: the promised 30 s in the long form, which has the machine to itself. In the short form, beside all other
// tests on machines of any speed, what hangs is told from what is slow.
var endsWithin = func() time.Duration {
	if os.Getenv("SHOAL_NEMESIS") != "" {
		return 30 * time.Second
	}
	return 2 * time.Minute
}()

// lostAt sends a command through the first router, and has a set lose its primary while the command is held. It returns the command's error.
func (k *killedAlone) lostAt(what lostAt) (answered error) {
	c, t, row := k.c, k.c.t, what.row
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute) // whatever hangs is named by the error of its command
	defer cancel()
	k.prepareFor(ctx, row)
	holder := what.step.node(c)
	release, reached := what.step.set(t, ctx, c)
	sent := make(chan error, 1)
	go func() { sent <- c.routers[0].direct.Database(row.db).RunCommand(ctx, row.command).Err() }()
	if err := reached(); err != nil {
		t.Fatalf("%v: %v", what, err)
	}
	wake := k.lose(ctx, what, holder, release)
	lost := time.Now()
	within, done := context.WithTimeout(ctx, endsWithin)
	defer done()
	select {
	case answered = <-sent:
		t.Logf("%v: answered %v", what, answered)
	case <-within.Done():
		t.Fatalf("%v: it does not end", what)
	}
	k.agree(within, what)
	if took := time.Since(lost); took > endsWithin {
		t.Errorf("%v: it takes %v", what, took)
	}
	wake()
	k.agree(ctx, what)
	if t.Failed() {
		t.FailNow()
	}
	t.Logf("%v, and %v before", time.Since(lost).Round(time.Millisecond), lost.Sub(began).Round(time.Millisecond))
	return answered
}

// lose has a set lose its primary, and returns when it has another; wake continues one that is still frozen.
func (k *killedAlone) lose(ctx context.Context, what lostAt, holder *server, release func()) (wake func()) {
	t, rs := k.c.t, k.set(what.victim)
	t.Helper()
	if what.loss == setLosesPower || what.loss == allLosePower {
		return k.losePower(what, rs, holder, release)
	}
	at := rs.elected()
	old, released := rs.members[at], make(chan struct{})
	free := func() { release(); close(released) }
	if old == holder && what.loss >= wakesSoon {
		release = what.step.releaseBy(t, ctx, holder)
	}
	switch what.loss {
	case stepsDown:
		rs.stepDown()
	case isKilled:
		old.kill()
	default:
		old.pause()
	}
	switch {
	case old != holder:
		free()
	case what.loss == isKilled:
		close(released) // and the fail point is gone
	default:
		go free() // the one that is frozen finds the request when it wakes
	}
	rs.awaitPrimaryBut(at)
	switch what.loss {
	case isKilled:
		old.start()
	case wakesLate:
		return func() { old.resume(); <-released; rs.waitReady() }
	case wakesSoon:
		old.resume()
	}
	<-released
	return rs.waitReady
}

// losePower cuts the power of a set, or of all, and returns when it is back.
func (k *killedAlone) losePower(what lostAt, rs *replicaSet, holder *server, release func()) (wake func()) {
	sets := []*replicaSet{rs}
	if what.loss == allLosePower {
		sets = append(k.c.sets(), k.third)
	}
	var cut sync.WaitGroup
	held := true
	for _, rs := range sets {
		held = held && !slices.Contains(rs.members, holder)
		cut.Go(rs.losePower)
	}
	cut.Wait()
	if held { // otherwise the fail point is gone
		release()
	}
	for _, rs := range sets {
		for _, m := range rs.members {
			m.launch()
		}
	}
	for _, rs := range sets {
		rs.waitReady()
	}
	return func() {}
}

// releaseBy returns a function that clears the fail point through a connection that is there already: the request reaches a process that is frozen.
func (h *holding) releaseBy(t *testing.T, ctx context.Context, node *server) (release func()) {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + node.at() + "/?directConnection=true").SetHeartbeatInterval(time.Hour).SetConnectTimeout(time.Hour).
		SetServerMonitoringMode(connstring.ServerMonitoringModePoll)) // Disconnect may wait for a hello that is streamed
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Ping(ctx, nil); err != nil {
		t.Fatal(err)
	}
	return func() {
		off := bson.D{{Key: "configureFailPoint", Value: h.point}, {Key: "mode", Value: "off"}}
		if err := client.Database("admin").RunCommand(ctx, off).Err(); err != nil {
			t.Errorf("%s of %s is not cleared: %v", h.point, node.name, err)
		}
		_ = client.Disconnect(context.Background())
	}
}

// agree waits until nothing is under way, and sends the command once more: it has been done then, and all nodes agree.
func (k *killedAlone) agree(ctx context.Context, what lostAt) {
	c, t, row := k.c, k.c.t, what.row
	t.Helper()
	row.awaitEnd(ctx, c)
	if row.undone != nil {
		await.State(t, fmt.Sprint(what, ": all nodes agree"), func() (string, bool) {
			done, undone := row.check(ctx, c), row.undone(ctx, c)
			return fmt.Sprint(done, "; ", undone), done == nil || undone == nil || ctx.Err() != nil
		})
	}
	err := c.survivor().Database(row.db).RunCommand(ctx, row.command).Err()
	var refused mongo.CommandError
	if err != nil && (row.again == 0 || !errors.As(err, &refused) || refused.Code != int32(row.again)) {
		t.Errorf("%v, again: %v", what, err)
	}
	if err := row.check(ctx, c); err != nil {
		t.Errorf("%v: %v", what, err)
	}
	c.checkCatalog("crash")
}

// sameEverywhere compares the members of each set.
func (k *killedAlone) sameEverywhere() {
	for _, rs := range k.c.sets() {
		rs.waitReady()
		rs.sameEverywhere("crash", "config")
	}
}
