package matrix

import (
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// stamp records the date and the commit of the checkout at root, with "-dirty" if files differ from it.
func (m *Matrix) stamp(root string) error {
	out, err := exec.Command("git", "-C", root, "describe", "--always", "--dirty").Output()
	if err != nil {
		return fmt.Errorf("git describe: %w", err)
	}
	m.Commit = strings.TrimSpace(string(out))
	m.Date = time.Now().UTC().Format(time.DateOnly)
	return nil
}
