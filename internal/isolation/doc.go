// Package isolation checks whether what transactions saw is possible under snapshot isolation.
//
// Transactions append unique numbers to lists and read whole lists. A list's content is the order of the writes to it, so the
// dependencies between transactions follow from the reads alone; the database does not have to report its order:
//
//	ww  a appended, b appended right after it         wr  a appended, b read a list that ends with it
//	rw  a read a list, b appended right after the last number that a saw
//
// Under snapshot isolation no cycle of these has fewer than two rw edges in a row (Adya, Liskov, O'Neil: Generalized isolation
// level definitions, 2000; Fekete et al.: Making snapshot isolation serializable, 2005; the lists: Kingsbury and Alvaro, Elle,
// 2020). Write skew, a cycle with two rw edges in a row, may happen, and is not reported.
//
//	history ──► Check ──► versions (each list's order) ──► edges ──► cycles
//	               └── what no order can explain: reads of aborted writes, of a part of a transaction, lists that fork, lost writes
package isolation
