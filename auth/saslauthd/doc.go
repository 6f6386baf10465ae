// Package saslauthd asks the daemon of Cyrus SASL whether a password is right.
//
//	Check ──► UNIX socket (parameter saslauthdPath): user, password, service, realm, each as a length of two bytes and as many bytes
//	      ◄── a length of two bytes and a text: OK, or NO with a reason
//
// Invariant: only an answer that begins with OK means that the password is right.
package saslauthd
