# What the cluster stands on: a network, a key, the weights, an alarm. The cluster and its machines are
# in cluster.tf, the way in from outside in door.tf, who may do what in identities.tf.

data "google_project" "this" {
  project_id = var.project
}

data "google_storage_project_service_account" "this" {
  project = var.project
}

locals {
  labels = merge(var.labels, { service = var.name })
}

resource "google_project_service" "this" {
  for_each = toset([
    "billingbudgets.googleapis.com",
    "cloudkms.googleapis.com",
    "compute.googleapis.com",
    "container.googleapis.com",
    "dns.googleapis.com",
    "iam.googleapis.com",
    "monitoring.googleapis.com",
  ])

  project            = var.project
  service            = each.value
  disable_on_destroy = false # others in the project may use it
}

resource "google_compute_network" "this" {
  project                 = var.project
  name                    = var.name
  auto_create_subnetworks = false
  depends_on              = [google_project_service.this]
}

resource "google_compute_subnetwork" "nodes" {
  project                  = var.project
  region                   = var.region
  name                     = "${var.name}-nodes"
  network                  = google_compute_network.this.id
  ip_cidr_range            = cidrsubnet(var.cidr, 4, 0)
  private_ip_google_access = true # to the weights without NAT

  secondary_ip_range {
    range_name    = "pods"
    ip_cidr_range = cidrsubnet(var.cidr, 1, 1)
  }

  secondary_ip_range {
    range_name    = "services"
    ip_cidr_range = cidrsubnet(var.cidr, 4, 1)
  }

  dynamic "log_config" {
    for_each = var.flow_logs ? [1] : []

    content {
      aggregation_interval = "INTERVAL_5_SEC"
      flow_sampling        = 0.5
      metadata             = "INCLUDE_ALL_METADATA"
    }
  }
}

resource "google_compute_router" "this" {
  project = var.project
  region  = var.region
  name    = var.name
  network = google_compute_network.this.id
}

resource "google_compute_router_nat" "this" {
  project                            = var.project
  region                             = var.region
  name                               = var.name
  router                             = google_compute_router.this.name
  nat_ip_allocate_option             = "AUTO_ONLY"
  source_subnetwork_ip_ranges_to_nat = "ALL_SUBNETWORKS_ALL_IP_RANGES"

  log_config {
    enable = true
    filter = "ERRORS_ONLY"
  }
}

resource "google_kms_key_ring" "this" {
  project    = var.project
  location   = var.region
  name       = var.name
  depends_on = [google_project_service.this]
}

resource "google_kms_crypto_key" "this" {
  # checkov:skip=CKV_GCP_82:teardown has to work; versions can be restored for a month
  name            = var.name
  key_ring        = google_kms_key_ring.this.id
  rotation_period = "7776000s" # 90 days
  labels          = local.labels
}

# Google's own accounts that encrypt with the key: of the bucket, of the cluster's secrets, of the disks.
resource "google_kms_crypto_key_iam_member" "this" {
  for_each = {
    storage   = data.google_storage_project_service_account.this.email_address
    container = "service-${data.google_project.this.number}@container-engine-robot.iam.gserviceaccount.com"
    compute   = "service-${data.google_project.this.number}@compute-system.iam.gserviceaccount.com"
  }

  crypto_key_id = google_kms_crypto_key.this.id
  role          = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
  member        = "serviceAccount:${each.value}"
  depends_on    = [google_project_service.this]
}

resource "google_storage_bucket" "weights" {
  # checkov:skip=CKV_GCP_62:one account reads it, and audit logs say when, where they are on for data
  project                     = var.project
  location                    = var.region
  name                        = "${var.project}-${var.name}-weights"
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = !var.deletion_protection
  labels                      = local.labels

  encryption {
    default_kms_key_name = google_kms_crypto_key.this.id
  }

  versioning {
    enabled = true
  }

  lifecycle_rule {
    condition {
      days_since_noncurrent_time = 30
    }

    action {
      type = "Delete"
    }
  }

  depends_on = [google_kms_crypto_key_iam_member.this]
}

resource "google_monitoring_notification_channel" "budget" {
  for_each = toset(var.budget.emails)

  project      = var.project
  display_name = "${var.name} budget: ${each.value}"
  type         = "email"
  labels       = { email_address = each.value }
  user_labels  = local.labels
  depends_on   = [google_project_service.this]
}

resource "google_billing_budget" "this" {
  billing_account = var.budget.billing_account
  display_name    = "${var.name} monthly"

  budget_filter {
    projects               = ["projects/${data.google_project.this.number}"]
    calendar_period        = "MONTH"
    credit_types_treatment = "EXCLUDE_ALL_CREDITS"
  }

  amount {
    specified_amount {
      currency_code = var.budget.currency
      units         = tostring(var.budget.monthly)
    }
  }

  threshold_rules {
    threshold_percent = 0.8
  }

  threshold_rules {
    threshold_percent = 1.0
    spend_basis       = "FORECASTED_SPEND"
  }

  all_updates_rule {
    monitoring_notification_channels = [for channel in google_monitoring_notification_channel.budget : channel.id]
    disable_default_iam_recipients   = false
  }

  depends_on = [google_project_service.this]
}
