package mongoerr

import (
	"errors"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestReplyFieldsAndTheirOrder(t *testing.T) {
	details, err := bson.Marshal(bson.D{{Key: "keyPattern", Value: bson.D{{Key: "a", Value: int32(1)}}}})
	if err != nil {
		t.Fatal(err)
	}
	e := New(DuplicateKey, "E11000").WithDetails(details).WithLabel(LabelRetryableWrite)
	got := bson.Raw(AppendReply(nil, fmt.Errorf("insert: %w", e))).String()
	want := `{"errorLabels": ["RetryableWriteError"],"ok": {"$numberDouble":"0.0"},"errmsg": "E11000",` +
		`"code": {"$numberInt":"11000"},"codeName": "DuplicateKey","keyPattern": {"a": {"$numberInt":"1"}}}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestErrorsOfNoKindBecomeInternal(t *testing.T) {
	if c := CodeOf(errors.New("x")); c != InternalError {
		t.Errorf("code %d", c)
	}
	if CodeOf(nil) != 0 || From(nil) != nil {
		t.Error("nil is an error")
	}
}

func TestNamesAndCategories(t *testing.T) {
	for _, tc := range []struct {
		code Code
		name string
		in   []Category
		out  []Category
	}{
		{2, "BadValue", nil, []Category{CategoryRetryable, CategoryTransient, CategoryNetwork}},
		{64, "WriteConcernTimeout", []Category{CategoryWriteConcern}, []Category{CategoryRetryable}},
		{91, "ShutdownInProgress", []Category{CategoryShutdown, CategoryRetryable}, []Category{CategoryNotPrimary}},
		{112, "WriteConflict", []Category{CategoryTransient}, []Category{CategoryRetryable}},
		{189, "PrimarySteppedDown", []Category{CategoryNotPrimary, CategoryRetryable}, nil},
		{391, "ReauthenticationRequired", nil, []Category{CategoryRetryable}},
		{11602, "InterruptedDueToReplStateChange", []Category{CategoryNotPrimary, CategoryInterruption}, nil},
		{13388, "StaleConfig", []Category{CategoryStaleRouting}, []Category{CategoryRetryable}},
		{40415, "IDLUnknownField", nil, nil},
		{51024, "Location51024", nil, []Category{^Category(0)}},
	} {
		if tc.code.Name() != tc.name {
			t.Errorf("%d is called %s, want %s", tc.code, tc.code.Name(), tc.name)
		}
		for _, c := range tc.in {
			if !tc.code.In(c) {
				t.Errorf("%s is not in category %b", tc.name, c)
			}
		}
		for _, c := range tc.out {
			if tc.code.In(c) {
				t.Errorf("%s is in category %b", tc.name, c)
			}
		}
	}
}
