// Package auth implements authentication and authorization: SCRAM, the members' key file, users and roles as
// documents, the built-in roles, and the table of what each command and each stage requires. Apart from ReadKeyFile it does
// no I/O: it works on documents, which the pipeline reads and writes.
//
//	saslStart, saslContinue ── Conversation.Step ── credentials of a user document, or those of a Key
//	user document ── ParseUser ── Resolve (built-in roles, role documents) ── Identity with its Grants
//	request ── Allows ── the command's Rule ── Grants.Allow for each action on each resource
//
// Invariants
//
//  1. Every command and every stage has a row (Rule, StageRule): one without a row is refused to everyone except members.
//  2. Grants are immutable. A user that changes gets new ones; an Identity records the generation of users that it was read from.
//  3. A user that does not exist gets the same replies as one with a wrong password: same messages, same work, a salt of
//     its own that is the same each time (Simulation).
//  4. Secrets are compared in constant time.
package auth
