// Package hashkey computes what hashed indexes and hashed shard keys have in place of a value, as the shell's
// convertShardKeyToHashed and $toHashedIndexKey show it.
//
//	Hash(v) = first eight bytes, little-endian, of MD5(seed int32 = 0 ‖ element)
//	element = kind int32 ‖ [name, NUL: inside documents] ‖ payload
//	payload = number cut to a long | bytes as stored | elements, then the kind of their end (0)
//
// Invariants
//
//  1. Equal integers have the same hash whatever their type; fractions are truncated.
//  2. The hash is part of the format on disk and of chunk bounds: it never changes.
package hashkey
