package router_test

import (
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A record that is written to config.transactions through a router goes to the config server, and its sessions follow it: retryable writes
// to the config database have their history there.
func TestSessionRecordsAreWrittenThroughARouter(t *testing.T) {
	c := newTestCluster(t, 1)
	const id = `{"id": {"$binary": {"base64": "AAAAAAAAQACAAAAAAAAAAQ==", "subType": "04"}}, "uid": {"$binary": {"base64": "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=", "subType": "00"}}}`
	record := func(number string) string {
		return `{"_id": ` + id + `, "txnNum": {"$numberLong": "` + number + `"}, "lastWriteOpTime": {"ts": {"$timestamp": {"t": 1, "i": 1}}, "t": 1}, "lastWriteDate": {"$date": "2026-01-01T00:00:00Z"}}`
	}
	write := func(number string) int32 {
		code, _ := c.raw("config", `{"update": "mine", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}, "upsert": true}],
			"lsid": {"id": {"$binary": {"base64": "AAAAAAAAQACAAAAAAAAAAQ==", "subType": "04"}}}, "txnNumber": {"$numberLong": "`+number+`"}}`)["code"].(int32)
		return code
	}
	expect := func(number string, want mongoerr.Code) {
		t.Helper()
		if got := write(number); got != int32(want) {
			t.Errorf("number %s: %d, want %d", number, got, int32(want))
		}
	}
	c.run("config", `{"insert": "transactions", "documents": [`+record("7")+`]}`)
	c.expect(c.all("config", `{"find": "transactions", "projection": {"_id": 0, "txnNum": 1}}`), `[{"txnNum":7}]`)
	expect("6", mongoerr.TransactionTooOld)
	expect("7", mongoerr.IncompleteTransactionHistory)
	expect("8", 0)
	c.run("config", `{"findAndModify": "transactions", "query": {}, "update": `+record("20")+`}`)
	expect("8", mongoerr.TransactionTooOld)
	expect("20", mongoerr.IncompleteTransactionHistory)
	c.run("admin", `{"bulkWrite": 1, "ops": [{"update": 0, "filter": {}, "updateMods": {"$set": {"txnNum": 30}}}], "nsInfo": [{"ns": "config.transactions"}]}`)
	expect("29", mongoerr.TransactionTooOld)
	expect("31", 0)
	c.run("config", `{"delete": "transactions", "deletes": [{"q": {}, "limit": 0}]}`)
	expect("1", 0)
}
