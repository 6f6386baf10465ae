package querytest

import "go.mongodb.org/mongo-driver/v2/bson"

// Update returns an update document or pipeline that leaves _id and "k", "g" alone and fails on no document.
func (g *Gen) Update() any {
	switch g.R.IntN(8) {
	case 0:
		return bson.D{{Key: "$unset", Value: bson.D{{Key: pick(g, "a", "b", "d"), Value: 1}}}}
	case 1:
		return bson.D{{Key: "$inc", Value: bson.D{{Key: "v", Value: 1}}}, {Key: "$set", Value: bson.D{{Key: "c", Value: g.operand()}}}}
	case 2:
		return bson.D{{Key: pick(g, "$min", "$max"), Value: bson.D{{Key: pick(g, "a", "b", "v"), Value: g.Number()}}}}
	case 3:
		return bson.A{stage("$set", bson.D{{Key: pick(g, "b", "c", "e"), Value: g.Expr(2)}})}
	case 4:
		return bson.D{{Key: "$rename", Value: bson.D{{Key: "d", Value: "e"}}}}
	case 5:
		return bson.D{{Key: "$push", Value: bson.D{{Key: "list", Value: bson.D{{Key: "$each", Value: bson.A{g.Number(), g.Word()}}, {Key: "$slice", Value: -3}}}}}}
	case 6:
		return bson.D{{Key: "$addToSet", Value: bson.D{{Key: "list", Value: g.Number()}}}}
	}
	return bson.D{{Key: "$set", Value: bson.D{{Key: pick(g, "a", "b", "c", "s"), Value: g.operand()}}}}
}
