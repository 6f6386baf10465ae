// Package auth implements authentication and authorization: SCRAM, the members' key file, users and roles as
// documents, the built-in roles, and the table of what each command and each stage requires. It is pure: it works
// on documents, which the pipeline reads and writes.
//
//	saslStart, saslContinue ── Conversation.Step ── credentials of a user document, or those of a Key
//	user document ── ParseUser ── Resolve (built-in roles, role documents) ── Identity with its Grants
//	request ── Allows ── the command's Rule ── Grants.Allow for each action on each resource
//
// Invariants
//
//  1. Every command and every stage has a row (Rule, StageRule): one without is refused to everyone except members.
//  2. Grants are immutable. A user that changes gets new ones; an Identity says which generation of users it is of.
//  3. A user that does not exist is answered as one with a wrong password: same messages, same work, a salt of its own
//     that is the same each time (Simulated).
//  4. Comparisons of secrets take the same time whatever differs.
package auth
