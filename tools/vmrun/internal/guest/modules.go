package guest

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// loadModules loads module files in the order given. One that is loaded already
// is fine.
func loadModules(paths []string) error {
	for _, path := range paths {
		if err := loadModule(path); err != nil {
			return fmt.Errorf("load module %s: %w", path, err)
		}
	}
	return nil
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.FinitModule(int(f.Fd()), "", 0)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}
