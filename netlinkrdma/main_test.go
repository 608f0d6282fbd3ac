package netlinkrdma

import (
	"os"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

func TestMain(m *testing.M) {
	os.Exit(testenv.Main(m, ""))
}
