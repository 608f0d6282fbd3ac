package engine

// A transition has the attributes that a change of state needs and those that it permits, by type
// of QP. They come from qp_state_table in the kernel's core/verbs.c.
type transition struct {
	valid              bool
	required, optional [UD + 1]AttrMask
}

// typeMasks are the masks of the types GSI, RC, UC and UD.
func typeMasks(gsi, rc, uc, ud AttrMask) [UD + 1]AttrMask {
	return [UD + 1]AttrMask{GSI: gsi, RC: rc, UC: uc, UD: ud}
}

// transitions are all changes of state that are permitted, by old and new state.
var transitions = func() (t [Err + 1][Err + 1]transition) {
	for from := range t {
		t[from][Reset].valid = true
		t[from][Err].valid = State(from) != Reset
	}
	const (
		pkey   = AttrPKeyIndex
		port   = AttrPort
		qkey   = AttrQKey
		access = AttrAccess
		alt    = AttrAltPath
		cur    = AttrCurState
		mig    = AttrPathMigState
		rnr    = AttrMinRNRTimer
		conn   = pkey | port | access
	)
	t[Reset][Init] = transition{valid: true, required: typeMasks(pkey|qkey, conn, conn, pkey|port|qkey)}
	t[Init][Init] = transition{valid: true, optional: typeMasks(pkey|qkey, conn, conn, pkey|port|qkey)}
	way := AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN
	t[Init][RTR] = transition{
		valid:    true,
		required: typeMasks(0, way|AttrMaxDestRdAtomic|rnr, way, 0),
		optional: typeMasks(pkey|qkey, alt|access|pkey, alt|access|pkey, pkey|qkey),
	}
	send := AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrSQPSN | AttrMaxRdAtomic
	ready := typeMasks(cur|qkey, cur|alt|access|rnr|mig, cur|alt|access|mig, cur|qkey)
	t[RTR][RTS] = transition{valid: true, required: typeMasks(AttrSQPSN, send, AttrSQPSN, AttrSQPSN), optional: ready}
	t[RTS][RTS] = transition{valid: true, optional: ready}
	t[SQD][RTS] = transition{valid: true, optional: ready}
	t[SQE][RTS] = transition{valid: true, optional: typeMasks(cur|qkey, 0, cur|access, cur|qkey)}
	drain := AttrSQDNotify
	t[RTS][SQD] = transition{valid: true, optional: typeMasks(drain, drain, drain, drain)}
	t[SQD][SQD] = transition{valid: true, optional: typeMasks(pkey|qkey,
		port|AttrAV|AttrTimeout|AttrRetryCount|AttrRNRRetry|AttrMaxRdAtomic|AttrMaxDestRdAtomic|alt|access|pkey|rnr|mig,
		AttrAV|alt|access|pkey|mig, pkey|qkey)}
	return t
}()

// permitted reports whether a QP of a type may go from one state to another with the attributes of a
// mask (ib_modify_qp_is_ok).
func permitted(typ QPType, from, to State, mask AttrMask) bool {
	if mask&AttrCurState != 0 && from != RTR && from != RTS && from != SQD && from != SQE {
		return false
	}
	t := &transitions[from][to]
	required, optional := t.required[typ], t.optional[typ]
	return t.valid && mask&required == required && mask&^(required|optional|AttrState|AttrRateLimit) == 0
}
