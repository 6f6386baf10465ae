// Package geo is the geometry of the query language: it reads GeoJSON and legacy coordinate pairs, and answers which
// shapes contain, meet or are how far from which.
//
// A stored value becomes a Geometry through ParseStored; the operand of $geoWithin and $geoIntersects a Query through
// ParseQuery, which is asked with Matches; the operand of $near and $nearSphere a Near through ParseNear, which is asked
// with Distance. Index keys come from SphereKeys and PlaneKey.
//
// Invariants:
//  1. Coordinates are in degrees, longitude first; distances on the sphere are in metres of a sphere of radius EarthRadius.
//  2. A Geometry is immutable and may be used by many goroutines.
//  3. A shape of the plane ($box, $center, $polygon) only ever contains points, a shape of the sphere any geometry whose
//     coordinates are on the sphere.
//  4. The boundary belongs to a shape, save the sloped edges of a $polygon, where the ray that counts crossings decides.
package geo
