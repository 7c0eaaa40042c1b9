resource "google_container_cluster" "this" {
  # checkov:skip=CKV_GCP_12:the datapath enforces network policies by itself
  # checkov:skip=CKV_GCP_21:they are resource_labels, of a local that checkov does not follow
  # checkov:skip=CKV_GCP_61:var.flow_logs is on by default; examples that are to be thrown away turn it off
  # checkov:skip=CKV_GCP_65:groups belong to an organisation, which not everybody has
  # checkov:skip=CKV_GCP_66:which images may run is for an organisation's policy to say
  project                     = var.project
  location                    = var.region
  name                        = var.name
  node_locations              = var.zones
  network                     = google_compute_network.this.id
  subnetwork                  = google_compute_subnetwork.nodes.id
  networking_mode             = "VPC_NATIVE"
  datapath_provider           = "ADVANCED_DATAPATH" # enforces the manifests' NetworkPolicy
  enable_shielded_nodes       = true
  enable_intranode_visibility = var.flow_logs
  remove_default_node_pool    = true
  initial_node_count          = 1
  deletion_protection         = var.deletion_protection
  resource_labels             = local.labels

  # Of the pool that is made and removed at once.
  node_config {
    service_account   = google_service_account.nodes.email
    boot_disk_kms_key = google_kms_crypto_key.this.id

    shielded_instance_config {
      enable_secure_boot          = true
      enable_integrity_monitoring = true
    }

    workload_metadata_config {
      mode = "GKE_METADATA"
    }
  }

  release_channel {
    channel = var.release_channel
  }

  ip_allocation_policy {
    cluster_secondary_range_name  = "pods"
    services_secondary_range_name = "services"
  }

  private_cluster_config {
    enable_private_nodes    = true
    enable_private_endpoint = length(var.api_cidrs) == 0
    master_ipv4_cidr_block  = var.control_plane_cidr
  }

  # Without any block nobody from outside the network gets in.
  master_authorized_networks_config {
    gcp_public_cidrs_access_enabled = false

    dynamic "cidr_blocks" {
      for_each = var.api_cidrs

      content {
        cidr_block = cidr_blocks.value
      }
    }
  }

  master_auth {
    client_certificate_config {
      issue_client_certificate = false
    }
  }

  workload_identity_config {
    workload_pool = "${var.project}.svc.id.goog"
  }

  database_encryption {
    state    = "ENCRYPTED"
    key_name = google_kms_crypto_key.this.id
  }

  addons_config {
    gcs_fuse_csi_driver_config {
      enabled = true
    }
  }

  logging_config {
    enable_components = ["SYSTEM_COMPONENTS", "APISERVER", "CONTROLLER_MANAGER", "SCHEDULER", "WORKLOADS"]
  }

  monitoring_config {
    enable_components = ["SYSTEM_COMPONENTS"]

    managed_prometheus {
      enabled = true
    }
  }

  lifecycle {
    ignore_changes = [node_config] # of the pool that is gone
  }

  depends_on = [google_kms_crypto_key_iam_member.this]
}

locals {
  # One kind of pool: "system" has no GPUs and is always there.
  pools = merge(
    {
      system = {
        machine_type = var.system_pool.machine_type
        spot         = false
        min          = var.system_pool.min
        max          = var.system_pool.max
        disk_gib     = 100
        gpu_type     = null
        gpu_count    = 0
        zones        = var.zones
      }
    },
    var.gpu_pools,
  )
}

resource "google_container_node_pool" "this" {
  for_each = local.pools

  project        = var.project
  location       = var.region
  cluster        = google_container_cluster.this.name
  name           = each.key
  node_locations = coalesce(each.value.zones, var.zones)

  autoscaling {
    total_min_node_count = each.value.min
    total_max_node_count = each.value.max
    location_policy      = each.value.spot ? "ANY" : "BALANCED"
  }

  management {
    auto_repair  = true
    auto_upgrade = true
  }

  upgrade_settings {
    strategy        = "SURGE"
    max_surge       = each.value.gpu_count > 0 ? 0 : 1 # a spare GPU is seldom to be had
    max_unavailable = each.value.gpu_count > 0 ? 1 : 0
  }

  node_config {
    machine_type      = each.value.machine_type
    spot              = each.value.spot
    image_type        = "COS_CONTAINERD"
    disk_type         = "pd-balanced"
    disk_size_gb      = each.value.disk_gib
    boot_disk_kms_key = google_kms_crypto_key.this.id
    service_account   = google_service_account.nodes.email
    oauth_scopes      = ["https://www.googleapis.com/auth/cloud-platform"] # the account's roles are the bound
    labels            = { "chairlift/pool" = each.key }
    resource_labels   = local.labels
    metadata          = { disable-legacy-endpoints = "true" }

    # GKE taints nodes with GPUs nvidia.com/gpu=present:NoSchedule by itself.
    dynamic "guest_accelerator" {
      for_each = each.value.gpu_count > 0 ? [1] : []

      content {
        type  = each.value.gpu_type
        count = each.value.gpu_count

        gpu_driver_installation_config {
          gpu_driver_version = "DEFAULT"
        }
      }
    }

    shielded_instance_config {
      enable_secure_boot          = true
      enable_integrity_monitoring = true
    }

    workload_metadata_config {
      mode = "GKE_METADATA"
    }
  }

  depends_on = [google_project_iam_member.nodes]
}
