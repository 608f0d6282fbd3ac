package hca

import "github.com/goverbs/goverbs/test/hca/prm"

// command is a command of the firmware.
type command struct {
	run      func(d *Device, c *call) error
	in, out  int    // the least lengths in bytes
	phase    phase  // how far up the card must be
	mode     Mode   // the mode that the command is for; empty is both
	noEffect string // what a real card would do besides answering, and this one does not
}

// Lengths in bytes of what many commands have.
const (
	small = 16
	list  = prm.PageList // up to the list of pages
)

// unfilled says of a counter that it stays 0.
const unfilled = "counts; here all counters are 0"

// ok is a command that is answered, and no more.
func ok(*Device, *call) error { return nil }

// commands has every command that the card knows. Any other opcode is a bad one. It is filled in init
// because the commands refer to it themselves.
var commands = map[prm.Op]command{}

func init() {
	for _, table := range []map[prm.Op]command{cardCommands, userCommands, resourceCommands, verbsCommands, portCommands, ethernetCommands} {
		for op, c := range table {
			if _, ok := commands[op]; ok {
				panic("two commands have the opcode of " + op.String())
			}
			commands[op] = c
		}
	}
	for op := range transitions {
		commands[op] = command{run: (*Device).modifyQP, in: small, out: small, phase: phaseRunning}
	}
}

// cardCommands start, stop and describe the card itself.
var cardCommands = map[prm.Op]command{
	prm.EnableHCA:            {run: (*Device).enableHCA, in: small, out: small},
	prm.DisableHCA:           {run: (*Device).disableHCA, in: small, out: small, phase: phaseEnabled},
	prm.QueryISSI:            {run: (*Device).queryISSI, in: small, out: 0x380 / 8, phase: phaseEnabled},
	prm.SetISSI:              {run: (*Device).setISSI, in: small, out: small, phase: phaseEnabled},
	prm.QueryPages:           {run: (*Device).queryPages, in: small, out: small, phase: phaseEnabled},
	prm.ManagePages:          {run: (*Device).managePages, in: small, out: small, phase: phaseEnabled},
	prm.QueryHCACap:          {run: (*Device).queryCaps, in: small, out: small, phase: phaseEnabled},
	prm.SetHCACap:            {run: (*Device).setCaps, in: prm.CapsData + prm.CapsSize, out: small, phase: phaseEnabled},
	prm.InitHCA:              {run: (*Device).initHCA, in: small, out: small, phase: phaseEnabled},
	prm.TeardownHCA:          {run: (*Device).teardownHCA, in: small, out: small, phase: phaseRunning},
	prm.QueryAdapter:         {run: (*Device).queryAdapter, in: small, out: list, phase: phaseEnabled},
	prm.SetDriverVersion:     {run: ok, in: 0x280 / 8, out: small, phase: phaseEnabled, noEffect: "shows the driver's version to the hypervisor"},
	prm.Nop:                  {run: ok, in: small, out: small},
	prm.AccessReg:            {run: (*Device).accessRegister, in: small, out: small, phase: phaseEnabled},
	prm.QuerySpecialContexts: {run: (*Device).querySpecialContexts, in: small, out: small, phase: phaseRunning},
}

// resourceCommands allocate and free what has a number and no context, such as PDs and UARs.
var resourceCommands = map[prm.Op]command{
	prm.AllocPD:              {run: (*Device).allocPD, in: small, out: small, phase: phaseRunning},
	prm.DeallocPD:            {run: (*Device).deallocPD, in: small, out: small, phase: phaseRunning},
	prm.AllocXRCD:            {run: (*Device).allocXRCD, in: small, out: small, phase: phaseRunning},
	prm.DeallocXRCD:          {run: (*Device).deallocXRCD, in: small, out: small, phase: phaseRunning},
	prm.AllocUAR:             {run: (*Device).allocUAR, in: small, out: small, phase: phaseRunning},
	prm.DeallocUAR:           {run: (*Device).deallocUAR, in: small, out: small, phase: phaseRunning},
	prm.AllocTransportDomain: {run: (*Device).allocDomain, in: small, out: small, phase: phaseRunning},
	prm.DeallocTransportDom:  {run: (*Device).deallocDomain, in: small, out: small, phase: phaseRunning},
	prm.AllocQCounter:        {run: (*Device).allocCounters, in: small, out: small, phase: phaseRunning},
	prm.DeallocQCounter:      {run: (*Device).deallocCounters, in: small, out: small, phase: phaseRunning},
	prm.QueryQCounter:        {run: (*Device).queryCounters, in: 0x100 / 8, out: 0x800 / 8, phase: phaseRunning},

	prm.AllocMEMIC:   {run: (*Device).allocMEMIC, in: 32, out: small, phase: phaseRunning},
	prm.DeallocMEMIC: {run: (*Device).deallocMEMIC, in: 32, out: small, phase: phaseRunning},
}

// verbsCommands are about the objects of verbs.
var verbsCommands = map[prm.Op]command{
	prm.CreateEQ:        {run: (*Device).createEQ, in: list, out: small, phase: phaseRunning},
	prm.DestroyEQ:       {run: (*Device).destroyEQ, in: small, out: small, phase: phaseRunning},
	prm.QueryEQ:         {run: (*Device).queryEQ, in: small, out: list, phase: phaseRunning},
	prm.GenEQE:          {run: (*Device).genEQE, in: 0x280 / 8, out: small, phase: phaseRunning},
	prm.CreateCQ:        {run: (*Device).createCQ, in: list, out: small, phase: phaseRunning},
	prm.DestroyCQ:       {run: (*Device).destroyCQ, in: small, out: small, phase: phaseRunning},
	prm.QueryCQ:         {run: (*Device).queryCQ, in: small, out: list, phase: phaseRunning},
	prm.ModifyCQ:        {run: (*Device).modifyCQ, in: list, out: small, phase: phaseRunning},
	prm.CreateMKey:      {run: (*Device).createMKey, in: list, out: small, phase: phaseRunning},
	prm.DestroyMKey:     {run: (*Device).destroyMKey, in: small, out: small, phase: phaseRunning},
	prm.QueryMKey:       {run: (*Device).queryMKey, in: small, out: list, phase: phaseRunning},
	prm.PageFaultResume: {run: (*Device).resumePageFault, in: small, out: small, phase: phaseRunning},
	prm.CreateQP:        {run: (*Device).createQP, in: list, out: small, phase: phaseRunning},
	prm.DestroyQP:       {run: (*Device).destroyQP, in: small, out: small, phase: phaseRunning},
	prm.QueryQP:         {run: (*Device).queryQP, in: small, out: list, phase: phaseRunning},
	prm.CreateRMP:       {run: (*Device).createRMP, in: list, out: small, phase: phaseRunning},
	prm.ModifyRMP:       {run: (*Device).modifyRMP, in: list, out: small, phase: phaseRunning},
	prm.DestroyRMP:      {run: (*Device).destroySRQ, in: small, out: small, phase: phaseRunning},
	prm.QueryRMP:        {run: (*Device).queryRMP, in: small, out: list, phase: phaseRunning},
	prm.CreateXRCSRQ:    {run: (*Device).createXRCSRQ, in: list, out: small, phase: phaseRunning},
	prm.DestroyXRCSRQ:   {run: (*Device).destroySRQ, in: small, out: small, phase: phaseRunning},
	prm.QueryXRCSRQ:     {run: (*Device).queryXRCSRQ, in: small, out: list, phase: phaseRunning},
	prm.ArmXRCSRQ:       {run: (*Device).armXRCSRQ, in: small, out: small, phase: phaseRunning},
	prm.CreateDCT:       {run: (*Device).createDCT, in: prm.DCTCtxSize, out: small, phase: phaseRunning},
	prm.DrainDCT:        {run: (*Device).drainDCT, in: small, out: small, phase: phaseRunning},
	prm.DestroyDCT:      {run: (*Device).destroyDCT, in: small, out: small, phase: phaseRunning},
	prm.QueryDCT:        {run: (*Device).queryDCT, in: small, out: prm.DCTCtxSize, phase: phaseRunning},
	prm.ArmDCT:          {run: (*Device).armDCT, in: small, out: small, phase: phaseRunning},
	prm.AttachToMCG:     {run: (*Device).attachMCG, in: 32, out: small, phase: phaseRunning},
	prm.DetachFromMCG:   {run: (*Device).detachMCG, in: 32, out: small, phase: phaseRunning},
}

// portCommands are about the port and its virtual port.
var portCommands = map[prm.Op]command{
	prm.QueryHCAVPortCtx:  {run: (*Device).queryHCAVPort, in: small, out: prm.HCAVPort + prm.HCAVPortSize, phase: phaseRunning, mode: IB},
	prm.ModifyHCAVPortCtx: {run: (*Device).modifyHCAVPort, in: prm.HCAVPort + prm.HCAVPortSize, out: small, phase: phaseRunning, mode: IB},
	prm.QueryHCAVPortGID:  {run: (*Device).queryGID, in: small, out: small, phase: phaseRunning, mode: IB},
	prm.QueryHCAVPortPKey: {run: (*Device).queryPKey, in: small, out: small, phase: phaseRunning},
	prm.MADIFC:            {run: (*Device).madIFC, in: prm.MADData + prm.MADSize, out: prm.MADData + prm.MADSize, phase: phaseRunning},
	prm.QueryVPortState:   {run: (*Device).queryVPortState, in: small, out: small, phase: phaseRunning},
	prm.ModifyVPortState:  {run: (*Device).modifyVPortState, in: small, out: small, phase: phaseRunning, noEffect: "a down port's packets stay away; see SetLink"},
	prm.QueryNICVPortCtx:  {run: (*Device).queryNICVPort, in: small, out: prm.NICVPortOut + prm.NICVPortHead, phase: phaseRunning, mode: RoCE},
	prm.ModifyNICVPortCtx: {run: (*Device).modifyNICVPort, in: prm.NICVPortIn + prm.NICVPortHead, out: small, phase: phaseRunning, mode: RoCE},
	prm.SetRoCEAddress:    {run: (*Device).setRoCEAddress, in: 0x180 / 8, out: small, phase: phaseRunning, mode: RoCE},
	prm.QueryRoCEAddress:  {run: (*Device).queryRoCEAddress, in: small, out: 0x180 / 8, phase: phaseRunning, mode: RoCE},
	prm.QueryVPortCounter: {run: (*Device).queryVPortCounter, in: 32, out: 0x1080 / 8, phase: phaseRunning},
	prm.QueryVNICEnv:      {run: ok, in: small, out: 0x1080 / 8, phase: phaseRunning, noEffect: unfilled},
}

// ethernetCommands are about raw Ethernet queues and flow steering.
var ethernetCommands = map[prm.Op]command{
	prm.CreateTIS:            {run: (*Device).createTIS, in: 0x600 / 8, out: small, phase: phaseRunning},
	prm.ModifyTIS:            {run: (*Device).modifyTIS, in: 0x600 / 8, out: small, phase: phaseRunning, noEffect: "sets a priority, and the port of a LAG, of which there is one here"},
	prm.QueryTIS:             {run: (*Device).queryTIS, in: small, out: prm.TISCtx + prm.TISCSize, phase: phaseRunning},
	prm.DestroyTIS:           {run: (*Device).destroyTIS, in: small, out: small, phase: phaseRunning},
	prm.CreateTIR:            {run: (*Device).createTIR, in: list, out: small, phase: phaseRunning, mode: RoCE},
	prm.ModifyTIR:            {run: (*Device).modifyTIR, in: list, out: small, phase: phaseRunning, mode: RoCE, noEffect: "sets the hash, and what is sent to itself"},
	prm.DestroyTIR:           {run: (*Device).destroyTIR, in: small, out: small, phase: phaseRunning, mode: RoCE},
	prm.CreateRQT:            {run: (*Device).createRQT, in: list, out: small, phase: phaseRunning, mode: RoCE},
	prm.ModifyRQT:            {run: (*Device).modifyRQT, in: list, out: small, phase: phaseRunning, mode: RoCE},
	prm.DestroyRQT:           {run: (*Device).destroyRQT, in: small, out: small, phase: phaseRunning, mode: RoCE},
	prm.CreateSQ:             {run: (*Device).createSQ, in: list, out: small, phase: phaseRunning},
	prm.SetPPRateLimit:       {run: (*Device).setRate, in: 0x200 / 8, out: small, phase: phaseRunning, mode: RoCE},
	prm.ModifySQ:             {run: (*Device).modifySQ, in: list, out: small, phase: phaseRunning},
	prm.DestroySQ:            {run: (*Device).destroySQ, in: small, out: small, phase: phaseRunning},
	prm.QuerySQ:              {run: (*Device).querySQ, in: small, out: list, phase: phaseRunning},
	prm.CreateRQ:             {run: (*Device).createRQ, in: list, out: small, phase: phaseRunning, mode: RoCE},
	prm.ModifyRQ:             {run: (*Device).modifyRQ, in: list, out: small, phase: phaseRunning, mode: RoCE},
	prm.DestroyRQ:            {run: (*Device).destroyRQ, in: small, out: small, phase: phaseRunning, mode: RoCE},
	prm.QueryRQ:              {run: (*Device).queryRQ, in: small, out: list, phase: phaseRunning, mode: RoCE},
	prm.SetFlowTableRoot:     {run: (*Device).setFlowTableRoot, in: 0x200 / 8, out: small, phase: phaseRunning, mode: RoCE},
	prm.CreateFlowTable:      {run: (*Device).createFlowTable, in: 0x200 / 8, out: small, phase: phaseRunning, mode: RoCE},
	prm.ModifyFlowTable:      {run: (*Device).modifyFlowTable, in: 0x200 / 8, out: small, phase: phaseRunning, mode: RoCE},
	prm.DestroyFlowTable:     {run: (*Device).destroyFlowTable, in: 0x200 / 8, out: small, phase: phaseRunning, mode: RoCE},
	prm.CreateFlowGroup:      {run: (*Device).createFlowGroup, in: 0x2000 / 8, out: small, phase: phaseRunning, mode: RoCE},
	prm.DestroyFlowGroup:     {run: (*Device).destroyFlowGroup, in: 0x200 / 8, out: small, phase: phaseRunning, mode: RoCE},
	prm.SetFlowTableEntry:    {run: (*Device).setFlowEntry, in: 0x1a00 / 8, out: small, phase: phaseRunning, mode: RoCE},
	prm.AllocFlowCounter:     {run: (*Device).allocFlowCounter, in: small, out: small, phase: phaseRunning, mode: RoCE},
	prm.DeallocFlowCounter:   {run: (*Device).deallocFlowCounter, in: small, out: small, phase: phaseRunning, mode: RoCE},
	prm.QueryFlowCounter:     {run: (*Device).queryFlowCounter, in: 0x100 / 8, out: 0x180 / 8, phase: phaseRunning, mode: RoCE},
	prm.DeleteFlowTableEntry: {run: (*Device).deleteFlowEntry, in: 0x200 / 8, out: small, phase: phaseRunning, mode: RoCE},
}
