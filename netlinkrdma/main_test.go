package netlinkrdma

import (
	_ "embed"
	"os"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// lacking lists what kernels, or their rxe, lack.
//
//go:embed lacking.txt
var lacking string

func TestMain(m *testing.M) {
	os.Exit(testenv.MainFor(m, map[string]string{"rxe": lacking, "mlx5": ""}))
}
