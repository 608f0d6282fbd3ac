package uverbs

import "fmt"

// TD is a thread domain: a promise that objects which belong to it are used by one goroutine
// at a time, so that the driver can do without locks for them (struct ibv_td). It is safe
// for concurrent use itself.
type TD struct {
	object
	tdDrivers
}

// AllocTD allocates a thread domain (ibv_alloc_td). The kernel knows neither thread domains nor
// parent domains. Where they have no effect the error is a [FeatureError].
func (d *Device) AllocTD() (*TD, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	if !d.driver.capabilities().threadDomains {
		return nil, &FeatureError{Feature: "ALLOC_TD", Driver: d.driver.name()}
	}
	td := &TD{}
	if err := td.addParents(d, "TD", "DEALLOC_TD", &d.object); err != nil {
		return nil, err
	}
	if err := d.driver.allocTD(td); err != nil {
		td.removeParents()
		return nil, fmt.Errorf("uverbs: %s: ALLOC_TD: %w", d.Name(), err)
	}
	return td, td.markCreated(td)
}

// Close frees the thread domain (ibv_dealloc_td). It fails with EBUSY while a parent domain
// uses it.
func (t *TD) Close() error {
	return t.close(func() error {
		if err := t.dev.driver.freeTD(t); err != nil {
			return fmt.Errorf("uverbs: %s: DEALLOC_TD: %w", t.dev.Name(), err)
		}
		return nil
	}, nil)
}

// AllocParentDomain returns a protection domain that is the same to the kernel, and whose objects
// belong to a thread domain; td may be nil (ibv_alloc_parent_domain). The PD cannot be
// closed before it. As with [Device.AllocTD], drivers that make nothing of it have none.
func (p *PD) AllocParentDomain(td *TD) (*PD, error) {
	if err := p.usable(); err != nil {
		return nil, err
	}
	if !p.dev.driver.capabilities().threadDomains {
		return nil, &FeatureError{Feature: "ALLOC_PARENT_DOMAIN", Driver: p.dev.driver.name()}
	}
	if p.parent != nil {
		return nil, argErr("AllocParentDomain", "PD", "a parent domain", "a PD of AllocPD")
	}
	parents := []*object{&p.object}
	if td != nil {
		parents = append(parents, &td.object)
	}
	pd := &PD{handle: p.handle, parent: p, td: td}
	if err := pd.addParents(p.dev, "parent domain", "DEALLOC_PD", parents...); err != nil {
		return nil, err
	}
	return pd, pd.markCreated(pd)
}
