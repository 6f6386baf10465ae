package shardnode

import (
	"crypto/md5"
	"encoding/hex"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func (n *Node) fileSpecs() []command.Spec {
	return []command.Spec{{
		Name: "filemd5", Roles: command.All, Kind: command.Read, Lenient: true, ArgTypes: command.TAny, Run: n.runFileMD5,
		Fields: []command.Field{command.Opt("root", command.TString), command.Opt("partialOk", command.TAny), command.Opt("md5state", command.TAny)},
	}}
}

// runFileMD5 computes the MD5 sum of a GridFS file from its chunks in order.
func (n *Node) runFileMD5(op *command.Op, dst []byte) ([]byte, error) {
	root := op.Req.Str("root")
	if root == "" {
		root = "fs"
	}
	if op.Bool("partialOk") {
		return dst, command.NotImplemented("filemd5 with partialOk")
	}
	ns := op.Req.NS(root + ".chunks")
	op.Stats.NS, op.Stats.Type = ns, "command"
	s := n.Engine.Snapshot()
	defer s.Release()
	l, err := n.exec.NewLang(op, nil, nil)
	if err != nil {
		return dst, err
	}
	q := &exec.Query{
		NS: ns, Coll: s.Catalog().Lookup(ns), Snap: s, Scope: l.Scope, AllowDiskUse: true,
		Filter: value.Doc(value.F("files_id", op.Req.Cmd)), Sort: value.Doc(value.F("files_id", value.NewInt32(1)), value.F("n", value.NewInt32(1))),
	}
	if err := q.Compile(nil); err != nil {
		return dst, err
	}
	stream, err := n.exec.Execute(op, q)
	if err != nil {
		return dst, err
	}
	defer stream.Close()
	sum, chunks := md5.New(), int64(0) //nolint:gosec
	for {
		doc, ok, err := stream.NextDoc(op)
		if err != nil {
			return dst, err
		}
		if !ok {
			break
		}
		if i := value.SafeInt64(value.Lookup(doc, "n")); i != chunks {
			return dst, mongoerr.Newf(10040, "chunks out of order: expected %d, found %d", chunks, i)
		}
		data := value.Lookup(doc, "data")
		if data.T != value.Binary {
			return dst, mongoerr.New(50847, "The element that calls binDataClean() must be type of BinData")
		}
		sum.Write(data.Bytes())
		chunks++
	}
	dst = value.Append(dst, "numChunks", value.NewInt32(int32(chunks)))
	return value.Append(dst, "md5", value.NewString(hex.EncodeToString(sum.Sum(nil)))), nil
}
