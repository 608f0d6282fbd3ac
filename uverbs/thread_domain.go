package uverbs

import "fmt"

// TD is a thread domain (struct ibv_td). One goroutine at a time may use all objects that belong to it, so that
// the driver needs no locks for them. The TD itself is safe for concurrent use.
type TD struct {
	object
	mlx5 *mlx5Register // only QPs of the TD use it, so they need no lock for it
}

// AllocTD allocates a thread domain (ibv_alloc_td). The error is a [FeatureError] if the driver has
// no use for it.
func (d *Device) AllocTD() (*TD, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	if d.mlx5 == nil {
		return nil, noFeature(d, "ALLOC_TD")
	}
	td := &TD{}
	if err := td.addParents(d, "TD", "DEALLOC_TD", &d.object); err != nil {
		return nil, err
	}
	reg, err := d.mlx5.uars.own()
	if err != nil {
		td.removeParents()
		return nil, fmt.Errorf("uverbs: %s: ALLOC_TD: %w", d.Name(), err)
	}
	td.mlx5 = reg
	return td, td.markCreated(td)
}

// Close frees the thread domain (ibv_dealloc_td). It fails with EBUSY while a parent domain
// uses it.
func (t *TD) Close() error {
	return t.close(func() error {
		t.dev.mlx5.uars.give(t.mlx5)
		return nil
	}, nil)
}

// AllocParentDomain returns a PD whose objects belong to a thread domain, which may be nil
// (ibv_alloc_parent_domain). To the kernel it is the same PD as p, which cannot be closed before
// it. The error is a [FeatureError] if the driver has no use for thread domains.
func (p *PD) AllocParentDomain(td *TD) (*PD, error) {
	if err := p.usable(); err != nil {
		return nil, err
	}
	if p.dev.mlx5 == nil {
		return nil, noFeature(p.dev, "ALLOC_PARENT_DOMAIN")
	}
	if p.parent != nil {
		return nil, argErr("AllocParentDomain", "PD", "a parent domain", "a PD of AllocPD")
	}
	pd := &PD{handle: p.handle, parent: p}
	parents := []*object{&p.object}
	if td != nil {
		parents = append(parents, &td.object)
		pd.mlx5 = td.mlx5
	}
	if err := pd.addParents(p.dev, "parent domain", "DEALLOC_PD", parents...); err != nil {
		return nil, err
	}
	return pd, pd.markCreated(pd)
}
