// Package geo is the geometry of the query language: it reads GeoJSON and legacy coordinate pairs, and computes which
// shapes contain or intersect each other and their distances.
//
// A stored value becomes a Geometry through ParseStored; the operand of $geoWithin and $geoIntersects a Query through
// ParseQuery, with the method Matches; the operand of $near and $nearSphere a Near through ParseNear, with the method
// Distance. Index keys come from SphereKeys and PlaneKey.
//
// Invariants:
//  1. Coordinates are in degrees, longitude first; distances on the sphere are in metres of a sphere of radius EarthRadius.
//  2. A Geometry is immutable and may be used by many goroutines.
//  3. A shape of the plane ($box, $center, $polygon) only ever contains points, a shape of the sphere any geometry whose
//     coordinates are on the sphere.
//  4. The boundary belongs to a shape, except for the sloped edges of a $polygon, where the ray that counts crossings decides.
package geo
