package match

import (
	"math"
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/query/bsontext"
	"github.com/shoaldb/shoal/query/value"
)

// Tree returns the filter as text for the planner's errors: a line for each node, with its children indented below it.
func (m *Matcher) Tree() string {
	var b strings.Builder
	m.root.print(&b, 0)
	return b.String()
}

func (n *Node) print(b *strings.Builder, depth int) {
	for range depth {
		b.WriteString("    ")
	}
	b.WriteString(n.line())
	b.WriteByte('\n')
	for _, c := range n.Children {
		c.print(b, depth+1)
	}
}

// line returns the text of a node itself.
func (n *Node) line() string {
	switch n.Kind {
	case And:
		return "$and"
	case Or:
		return "$or"
	case Nor:
		return "$nor"
	case Not:
		return "$not"
	case Eq, Lt, Lte, Gt, Gte, ExprEq, ExprGt, ExprGte, ExprLt, ExprLte:
		return n.Path + " " + kindNames[n.Kind] + " " + bsontext.Value(n.Value)
	case In:
		out := n.Path + " $in [ "
		for _, v := range n.Values {
			out += bsontext.Value(v) + " "
		}
		for _, r := range n.Regexes {
			out += "/" + r.Pattern + "/" + r.Options + " "
		}
		return out + "]"
	case RegexMatch:
		return n.Path + " regex /" + n.Regexes[0].Pattern + "/" + n.Regexes[0].Options
	case Exists:
		return n.Path + " exists"
	case Mod:
		return n.Path + " mod " + strconv.FormatInt(n.Num, 10) + " % x == " + strconv.FormatInt(n.Rem, 10)
	case Size:
		return n.Path + " $size : " + strconv.FormatInt(n.Num, 10)
	case ElemMatchObject:
		return n.Path + " $elemMatch (obj)"
	case ElemMatchValue:
		return n.Path + " $elemMatch (value)"
	case GeoNear:
		return n.nearLine()
	case Text:
		return n.textLine()
	}
	return bsontext.Doc(n.Serialize())
}

// nearLine has the field and the bound; an object mapper reads the field's name from it.
func (n *Node) nearLine() string {
	dist := min(n.Near.Max, math.MaxFloat64)
	sphere := "0"
	if n.Near.Radians {
		sphere = "1"
	}
	return "GEONEAR  field=" + n.Path + " maxdist=" + strconv.FormatFloat(dist, 'g', 6, 64) + " isNearSphere=" + sphere
}

func (n *Node) textLine() string {
	flag := func(name string) string {
		if value.Lookup(n.Value.Doc(), name).Truthy() {
			return "1"
		}
		return "0"
	}
	return "TEXT : query=" + value.Lookup(n.Value.Doc(), "$search").Str() + ", language=" + value.Lookup(n.Value.Doc(), "$language").Str() +
		", caseSensitive=" + flag("$caseSensitive") + ", diacriticSensitive=" + flag("$diacriticSensitive") + ", tag=NULL"
}
