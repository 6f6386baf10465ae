package exec

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// andSorted returns the records that all of its inputs return; each input is in order of RecordId. A pause in
// an input loses nothing: heads keeps what was read.
type andSorted struct {
	st     nodeStats
	ins    []Node
	heads  []storage.RecordID // the record that each input is at, nil if the next one has to be read
	failed []int64            // number of records of each input that another one does not have
}

func (a *andSorted) Next(op *command.Op, r *Row) (bool, error) {
	if a.heads == nil {
		a.heads, a.failed = make([]storage.RecordID, len(a.ins)), make([]int64, len(a.ins))
	}
	for !a.st.eof {
		top := -1
		for i := range a.ins {
			if a.heads[i] == nil {
				ok, err := a.ins[i].Next(op, r)
				if err != nil {
					return false, err
				}
				if !ok {
					a.st.eof = true
					return false, nil
				}
				a.heads[i] = r.RID.Clone()
			}
			if top < 0 || a.heads[i].Compare(a.heads[top]) > 0 {
				top = i
			}
		}
		if a.dropBelow(top) {
			continue
		}
		*r = Row{RID: a.heads[0]}
		clear(a.heads)
		a.st.advanced++
		return true, nil
	}
	return false, nil
}

// dropBelow advances the inputs that are behind the one at top; false if all are at the same record.
func (a *andSorted) dropBelow(top int) (moved bool) {
	high := a.heads[top]
	for i, h := range a.heads {
		if h.Compare(high) < 0 {
			a.heads[i] = nil
			a.failed[i]++
			moved = true
		}
	}
	return moved
}

func (a *andSorted) Save() {
	for _, n := range a.ins {
		n.Save()
	}
}

func (a *andSorted) Close() {
	for _, n := range a.ins {
		n.Close()
	}
}

func (a *andSorted) stats() *nodeStats {
	a.st.failed = a.failed
	return &a.st
}

// maxHashed limits the memory of an intersection.
const maxHashed = 32 << 20

// andHash returns the records that all of its inputs return. It remembers the records of all inputs but the last.
type andHash struct {
	st   nodeStats
	ins  []Node
	at   int                 // the input that is being read
	have map[string]struct{} // records that all inputs before it returned
	both map[string]struct{} // those of them that this one has returned, too
	left []int64             // records left after each input
}

// hashedRecord is the approximate cost of a remembered record in addition to its bytes.
const hashedRecord = 48

func (a *andHash) Next(op *command.Op, r *Row) (bool, error) {
	if a.both == nil {
		a.both = map[string]struct{}{}
	}
	for a.at < len(a.ins)-1 {
		ok, err := a.ins[a.at].Next(op, r)
		if err != nil {
			return false, err
		}
		if !ok {
			a.left = append(a.left, int64(len(a.both)))
			a.have, a.both = a.both, map[string]struct{}{}
			if a.at++; len(a.have) == 0 {
				a.at = len(a.ins)
			}
			continue
		}
		if err := a.remember(r.RID); err != nil {
			return false, err
		}
	}
	for a.at < len(a.ins) {
		ok, err := a.ins[a.at].Next(op, r)
		if err != nil {
			return false, err
		}
		if !ok {
			break
		}
		if _, ok := a.have[string(r.RID)]; !ok {
			continue
		}
		delete(a.have, string(r.RID))
		*r = Row{RID: r.RID}
		a.st.advanced++
		return true, nil
	}
	a.st.eof = true
	return false, nil
}

func (a *andHash) remember(rid storage.RecordID) error {
	if a.at > 0 {
		if _, ok := a.have[string(rid)]; !ok {
			return nil
		}
	}
	if _, dup := a.both[string(rid)]; dup {
		return nil
	}
	a.st.memory += int64(len(rid)) + hashedRecord
	if a.st.memory > maxHashed {
		return mongoerr.Newf(mongoerr.ExceededMemoryLimit, "AND_HASH stage buffered data usage of %d bytes exceeds internal limit of %d bytes", a.st.memory, maxHashed)
	}
	a.both[string(rid)] = struct{}{}
	return nil
}

func (a *andHash) Save() {
	for _, n := range a.ins {
		n.Save()
	}
}

func (a *andHash) Close() {
	for _, n := range a.ins {
		n.Close()
	}
}

func (a *andHash) stats() *nodeStats {
	a.st.failed = a.left
	return &a.st
}
