package value

import (
	"crypto/rand"
	"encoding/binary"
	"sync/atomic"
	"time"
)

var oidProcess = func() (p [5]byte) {
	_, _ = rand.Read(p[:])
	return p
}()

var oidCounter = func() *atomic.Uint32 {
	var seed [4]byte
	_, _ = rand.Read(seed[:])
	c := new(atomic.Uint32)
	c.Store(binary.LittleEndian.Uint32(seed[:]))
	return c
}()

// GenerateObjectID returns a new ObjectId: seconds, five bytes for this process, and a counter.
func GenerateObjectID() (id [12]byte) {
	binary.BigEndian.PutUint32(id[:], uint32(time.Now().Unix()))
	copy(id[4:], oidProcess[:])
	c := oidCounter.Add(1)
	id[9], id[10], id[11] = byte(c>>16), byte(c>>8), byte(c)
	return id
}
