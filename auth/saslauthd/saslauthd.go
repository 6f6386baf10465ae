package saslauthd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// timeout is the time limit for the daemon's answer.
const timeout = 10 * time.Second

// maxAnswer limits the daemon's answer.
const maxAnswer = 1024

// ErrRefused is the error of Check if the daemon says that the password is wrong.
var ErrRefused = errors.New("saslauthd refuses the password")

// Check asks the daemon that listens on a socket about a user's password for a service.
func Check(ctx context.Context, path, service, user, password string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("saslauthd cannot be reached: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var msg []byte
	for _, part := range []string{user, password, service, ""} {
		if len(part) > 1<<16-1 {
			return errors.New("saslauthd takes no text of that length")
		}
		msg = append(binary.BigEndian.AppendUint16(msg, uint16(len(part))), part...)
	}
	if _, err := conn.Write(msg); err != nil {
		return fmt.Errorf("cannot query saslauthd: %w", err)
	}
	return verdict(conn)
}

// verdict reads the daemon's answer: nil if the password is right.
func verdict(r io.Reader) error {
	answer, err := readAnswer(r)
	switch {
	case err != nil:
		return fmt.Errorf("saslauthd gave no answer: %w", err)
	case answer == "OK" || strings.HasPrefix(answer, "OK "):
		return nil
	}
	return ErrRefused
}

// readAnswer reads the daemon's answer. The reason of a refusal may follow a NUL or a space.
func readAnswer(r io.Reader) (string, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return "", err
	}
	n := int(binary.BigEndian.Uint16(size[:]))
	if n > maxAnswer {
		return "", fmt.Errorf("its length is %d", n)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return "", err
	}
	answer, _, _ := strings.Cut(string(text), "\x00")
	return answer, nil
}
