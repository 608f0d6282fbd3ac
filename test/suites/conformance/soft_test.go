package conformance

import _ "embed"

// lackingSoft lists what software devices lack in addition to rxe, which they play.
//
//go:embed lacking_soft.txt
var lackingSoft string
