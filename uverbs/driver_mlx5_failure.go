package uverbs

import "github.com/goverbs/goverbs/uverbs/internal/diag"

func (mlx5Driver) memlockForAll() string { return "" }

// refusal says why firmware refused the command that has just failed, if it did.
func (mlx5Driver) refusal() string { return diag.FirmwareRefusal() }
