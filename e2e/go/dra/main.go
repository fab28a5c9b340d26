// Command dra answers questions about devices with the released Kubernetes allocator: one JSON object
// per line in, one per line out. Karpool's own allocator is compared with it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// question: either a selector for one device, or claims for every node, `pods` times one after the other.
type question struct {
	Expression string                       `json:"expression"`
	Driver     string                       `json:"driver"`
	Device     *resourceapi.Device          `json:"device"`
	Nodes      []*v1.Node                   `json:"nodes"`
	Slices     []*resourceapi.ResourceSlice `json:"slices"`
	Classes    []*resourceapi.DeviceClass   `json:"classes"`
	Allocated  []*resourceapi.ResourceClaim `json:"allocated"`
	Claims     []*resourceapi.ResourceClaim `json:"claims"`
	Pods       int                          `json:"pods"`
	Features   map[string]bool              `json:"features"`
}

// answer: of each node, what the first pod gets and how many pods fit.
type answer struct {
	Matches bool                  `json:"matches"`
	Cost    uint64                `json:"cost,omitempty"`
	Compile string                `json:"compile,omitempty"`
	Error   string                `json:"error,omitempty"`
	Nodes   map[string]nodeAnswer `json:"nodes,omitempty"`
}

type nodeAnswer struct {
	Status  string                         `json:"status"`
	Message string                         `json:"message,omitempty"`
	First   []resourceapi.AllocationResult `json:"first,omitempty"`
	Count   int                            `json:"count"`
}

type classes map[string]*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) { return nil, errors.New("not needed") }

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, ok := c[name]; ok {
		return class, nil
	}
	return nil, fmt.Errorf("device class %q not found", name)
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<30)
	out := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	for in.Scan() {
		var q question
		a := answer{}
		if err := json.Unmarshal(in.Bytes(), &q); err != nil {
			a.Error = "question: " + err.Error()
		} else if q.Device != nil {
			a = selector(q)
		} else {
			a = allocate(q)
		}
		if err := encoder.Encode(a); err != nil {
			panic(err)
		}
		out.Flush()
	}
}

func selector(q question) answer {
	compiled := cel.GetCompiler(celFeatures(q)).CompileCELExpression(q.Expression, cel.Options{DisableCostEstimation: true})
	if compiled.Error != nil {
		return answer{Compile: compiled.Error.Error()}
	}
	matches, details, err := compiled.DeviceMatches(context.Background(), cel.Device{
		Driver: q.Driver, AllowMultipleAllocations: q.Device.AllowMultipleAllocations,
		Attributes: q.Device.Attributes, Capacity: q.Device.Capacity,
	})
	a := answer{Matches: matches}
	if details != nil && details.ActualCost() != nil {
		a.Cost = *details.ActualCost()
	}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

func celFeatures(q question) cel.Features {
	return cel.Features{EnableConsumableCapacity: on(q, "DRAConsumableCapacity", true), EnableListTypeAttributes: on(q, "DRAListTypeAttributes", false)}
}

func on(q question, name string, standard bool) bool {
	if value, ok := q.Features[name]; ok {
		return value
	}
	return standard
}

func allocate(q question) answer {
	features := structured.Features{
		AdminAccess:            on(q, "DRAAdminAccess", true),
		PrioritizedList:        on(q, "DRAPrioritizedList", true),
		PartitionableDevices:   on(q, "DRAPartitionableDevices", true),
		DeviceTaints:           on(q, "DRADeviceTaints", true),
		DeviceBindingAndStatus: on(q, "DRADeviceBindingConditions", true),
		ConsumableCapacity:     on(q, "DRAConsumableCapacity", true),
		ListTypeAttributes:     on(q, "DRAListTypeAttributes", false),
	}
	byName := classes{}
	for _, class := range q.Classes {
		byName[class.Name] = class
	}
	a := answer{Nodes: map[string]nodeAnswer{}}
	for _, node := range q.Nodes {
		state := structured.AllocatedState{
			AllocatedDevices:         sets.New[structured.DeviceID](),
			AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
		}
		for _, claim := range q.Allocated {
			hold(&state, claim.Status.Allocation, features)
		}
		cache := cel.NewCache(100, celFeatures(q))
		found := nodeAnswer{Status: "fits"}
		for found.Count < max(q.Pods, 1) {
			results, err := one(features, state, byName, q, cache, node)
			if err != nil || len(results) != len(q.Claims) {
				if found.Count == 0 {
					found.Status = "unschedulable"
				}
				if err != nil {
					found.Message = err.Error()
					if found.Count == 0 && !errors.Is(err, structured.ErrFailedAllocationOnNode) {
						found.Status = "error"
					}
				}
				break
			}
			if found.Count == 0 {
				found.First = results
			}
			found.Count++
			for i := range results {
				hold(&state, &results[i], features)
			}
		}
		a.Nodes[node.Name] = found
	}
	return a
}

func one(features structured.Features, state structured.AllocatedState, byName classes, q question, cache *cel.Cache, node *v1.Node) ([]resourceapi.AllocationResult, error) {
	ctx := context.Background()
	allocator, err := structured.NewAllocator(ctx, features, state, byName, q.Slices, cache)
	if err != nil {
		return nil, err
	}
	return allocator.Allocate(ctx, node, q.Claims)
}

// hold does what kube-scheduler's bookkeeping of allocated claims does.
func hold(state *structured.AllocatedState, allocation *resourceapi.AllocationResult, features structured.Features) {
	for _, result := range allocation.Devices.Results {
		if result.AdminAccess != nil && *result.AdminAccess {
			continue
		}
		id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
		if features.ConsumableCapacity && result.ShareID != nil {
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
			if result.ConsumedCapacity != nil {
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
			}
			continue
		}
		state.AllocatedDevices.Insert(id)
	}
}
